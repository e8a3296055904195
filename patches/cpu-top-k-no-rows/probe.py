"""Applies top_k without top_p to no rows, to one and to several, of which some have no top_k, as vLLM does on a CPU.

Both the function and the one that the sampler calls are asked.
"""

ROWS = [[1.0, 4.0, 2.0, 3.0], [4.0, 1.0, 3.0, 2.0], [2.0, 3.0, 4.0, 1.0]]
ALL = 4
"""The vocabulary: a request without top_k has its size."""


def probe() -> tuple[bool, str]:
    import torch

    check_rows()
    for name, apply in functions().items():
        try:
            none = apply(torch.tensor(ROWS)[:0], torch.tensor([], dtype=torch.int32))
        except RuntimeError as error:
            if "numel() == 0" not in str(error):
                raise
            return True, f"RuntimeError: {str(error).splitlines()[0]}"
        assert none is not None, name
        assert none.shape == (0, ALL), f"{name}: {none.shape}"
        assert none.dtype == torch.float32, f"{name}: {none.dtype}"
    return False, "no rows stay no rows"


def functions():
    from vllm.v1.sample.ops import topk_topp_sampler as module

    return {
        "apply_top_k_only": module.apply_top_k_only,
        "apply_top_k_top_p_pytorch": lambda rows, k: module.apply_top_k_top_p_pytorch(
            rows, k, None, allow_cpu_sync=True
        ),
    }


def check_rows() -> None:
    """The k largest values stay, in every batch of one to three rows."""
    import itertools

    import torch

    for name, apply in functions().items():
        for count in (1, 2, 3):
            for ks in itertools.product((1, 2, 3, ALL), repeat=count):
                rows = torch.tensor(ROWS[:count])
                kept = apply(rows.clone(), torch.tensor(ks, dtype=torch.int32))
                wanted = [[value > ALL - k for value in row] for row, k in zip(ROWS, ks, strict=False)]
                assert kept.isfinite().tolist() == wanted, f"{name}, k {ks}: {kept}"
                assert torch.equal(kept[kept.isfinite()], rows[kept.isfinite()]), f"{name}, k {ks}: {kept}"
