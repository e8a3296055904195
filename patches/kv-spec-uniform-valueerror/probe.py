"""Groups the KV cache of a target and its draft as the engine does, the hybrid KV cache manager being off.

A 31B has a window of 1024 and an E2B one of 512; both have full layers too. All layers must come into one group, in
which each keeps its own spec. What was uniform or not before must be so still. The configuration is a stand-in.
"""

NOT_UNIFORM = "must have the same window size"


class Nothing:
    """A part of a stand-in for VllmConfig: what it was not given is None."""

    def __init__(self, **given) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)


def probe() -> tuple[bool, str]:
    check_neighbours()
    pairs = {"target first": {**target(), **draft()}, "draft first": {**draft(), **target()}, **small_pairs()}
    for layers in pairs.values():
        try:
            found = is_uniform(layers)
        except ValueError as error:
            assert NOT_UNIFORM in str(error), error
            return True, f"ValueError: {error}"
        assert found is False, f"two windows are called uniform: {found!r}"
    for name, layers in pairs.items():
        try:
            check_together(layers)
            check_together({layer: as_full(spec) for layer, spec in layers.items()})
        except ValueError as error:
            assert NOT_UNIFORM in str(error), error
            return True, f"ValueError, {name}, by way of get_kv_cache_groups: {error}"
    return False, "not uniform; all layers of a target and its draft are one group, each with its own window"


def is_uniform(layers):
    return planning().is_kv_cache_spec_uniform(dict(layers))


def planning():
    try:
        from vllm.v1.core import kv_cache_planning
    except ImportError:  # before 0.33
        from vllm.v1.core import kv_cache_utils as kv_cache_planning
    return kv_cache_planning


def groups(layers):
    """The groups that the engine makes of a model's layers."""
    config = Nothing(
        scheduler_config=Nothing(disable_hybrid_kv_cache_manager=True, max_num_batched_tokens=8192, max_num_seqs=8),
        model_config=Nothing(supports_kv_cache_grouping=False, max_model_len=8192),
        parallel_config=Nothing(tensor_parallel_size=1, pipeline_parallel_size=1, decode_context_parallel_size=1),
        attention_config=Nothing(),
        cache_config=Nothing(block_size=16),
        num_prefill_lookahead_tokens=0,
    )
    module = planning()
    if hasattr(module, "get_global_kv_cache_groups"):  # from 0.33 on
        return module.get_global_kv_cache_groups(config, [dict(layers)])
    return module.get_kv_cache_groups(config, dict(layers))


def full(window, heads, size, **more):
    """The spec of a full layer; with a window, of a sliding one that is kept as long as a full one."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    options = {"block_size": 16, "dtype": torch.bfloat16, **more}
    return FullAttentionSpec(**options, num_kv_heads=heads, head_size=size, sliding_window=window)


def sliding(window, heads, size):
    import torch
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    options = {"block_size": 16, "dtype": torch.bfloat16}
    return SlidingWindowSpec(**options, num_kv_heads=heads, head_size=size, sliding_window=window)


def as_full(spec):
    """A full layer with a sliding layer's window stays one where nothing is to be promoted."""
    return full(spec.sliding_window, spec.num_kv_heads, spec.head_size)


def target():
    """The layers of a 31B: five sliding ones, then a full one."""
    return {
        f"target.{at}": full(None, 4, 512) if at % 6 == 5 else sliding(1024, 16, 256) for at in range(12)
    }  # fmt: skip


def draft():
    """The layers of an E2B that have a cache: four sliding ones, then a full one."""
    return {f"draft.{at}": full(None, 1, 512) if at % 5 == 4 else sliding(512, 1, 256) for at in range(10)}


def small_pairs():
    """Two windows and nothing else that differs, in both orders."""
    one, other = full(1024, 1, 256), full(512, 1, 256)
    return {
        "two windows": {"a": one, "b": other},
        "the smaller first": {"a": other, "b": one},
        "the last one": {"a": one, "b": one, "c": full(None, 1, 256), "d": other},
    }


def check_together(layers):
    """One group of all layers, in which a layer has its own spec, however it was promoted."""
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    found = groups(layers)
    assert len(found) == 1, f"{len(found)} groups"
    (group,) = found
    assert sorted(group.layer_names) == sorted(layers), group.layer_names
    kept = group.kv_cache_spec
    assert isinstance(kept, UniformTypeKVCacheSpecs), kept
    wanted = {name: as_full(spec) for name, spec in layers.items()}
    assert dict(kept.kv_cache_specs) == wanted, kept.kv_cache_specs


def check_neighbours():
    """What was uniform stays one spec; an AssertionError still means that it is not; other errors go through."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    assert is_uniform({}) is True
    same = {f"layer.{at}": full(None, 4, 512) for at in range(4)}
    windows = {"a": full(1024, 4, 256), "b": full(1024, 4, 256)}
    mixed = {"a": full(1024, 4, 256), "b": full(None, 4, 256)}
    alike = {"a": sliding(1024, 4, 256), "b": sliding(1024, 4, 256)}
    for layers in (same, windows, mixed, alike, {"a": full(None, 4, 512)}):
        assert is_uniform(layers) is True, layers
    for layers in (same, windows, mixed):
        (group,) = groups(layers)
        first = next(iter(layers.values()))
        assert type(group.kv_cache_spec) is FullAttentionSpec, group.kv_cache_spec
        assert group.kv_cache_spec == first, group.kv_cache_spec
        assert sorted(group.layer_names) == sorted(layers)
    others = [
        {"a": full(None, 4, 512), "b": full(None, 4, 256)},
        {"a": full(None, 4, 256), "b": full(None, 2, 256)},
        {"a": full(None, 4, 256), "b": full(None, 4, 256, dtype=torch.float16)},
        {"a": full(None, 4, 256), "b": sliding(1024, 4, 256)},
        {"a": sliding(1024, 4, 256), "b": full(None, 4, 256)},
    ]
    for layers in others:
        assert is_uniform(layers) is False, layers
