"""Asks whether the specs of a 31B target (window 1024) and its E2B draft (window 512) are uniform, in one group."""


def probe() -> tuple[bool, str]:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    try:
        from vllm.v1.core.kv_cache_planning import is_kv_cache_spec_uniform
    except ModuleNotFoundError:  # before 0.33
        from vllm.v1.core.kv_cache_utils import is_kv_cache_spec_uniform

    def spec(window, heads, size):
        options = {"block_size": 16, "num_kv_heads": heads, "head_size": size, "dtype": torch.bfloat16}
        return FullAttentionSpec(**options, sliding_window=window)

    specs = {"target.0": spec(1024, 16, 256), "target.1": spec(None, 4, 512), "draft.0": spec(512, 1, 256)}
    try:
        return False, f"uniform: {is_kv_cache_spec_uniform(specs)}"
    except ValueError as error:
        return True, f"ValueError: {error}"
