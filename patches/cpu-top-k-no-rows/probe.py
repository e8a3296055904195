"""Applies top_k without top_p to no rows, and to two rows of which one has no top_k, as vLLM does on a CPU."""


def probe() -> tuple[bool, str]:
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_only

    rows = torch.tensor([[1.0, 4.0, 2.0, 3.0], [4.0, 1.0, 3.0, 2.0]])
    kept = apply_top_k_only(rows.clone(), torch.tensor([2, 4], dtype=torch.int32)).isfinite().tolist()
    assert kept == [[False, True, False, True], [True, True, True, True]], kept
    try:
        none = apply_top_k_only(rows[:0], torch.tensor([], dtype=torch.int32))
    except RuntimeError as error:
        return True, f"RuntimeError: {str(error).splitlines()[0]}"
    assert none.shape == (0, 4), none.shape
    return False, "no rows stay no rows"
