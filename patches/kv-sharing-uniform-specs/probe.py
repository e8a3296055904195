"""Sets attention up for layers that read another layer's KV cache, as both model runners do.

Each layer must be found with the spec of the layer whose cache it reads, wherever that is in its group, and in
whichever group. Layers, attention backend and configuration are stand-ins; the groups and the set-up are vLLM's.
"""

import contextlib
import copy
from types import SimpleNamespace
from unittest.mock import patch

SLIDING = [f"draft.layers.{at}.self_attn.attn" for at in (0, 1, 2)]
FULL = [f"draft.layers.{at}.self_attn.attn" for at in (3, 4)]
OTHERS = [f"target.layers.{at}.self_attn.attn" for at in (0, 1)]
WIDE = [f"target.layers.{at}.self_attn.attn" for at in (2, 3)]
PLAIN = ["other.layers.0.self_attn.attn", "other.layers.1.self_attn.attn"]
READS = {
    "draft.layers.5.self_attn.attn": SLIDING[1],
    "draft.layers.6.self_attn.attn": FULL[0],
    "draft.layers.7.self_attn.attn": FULL[1],
    "draft.layers.8.self_attn.attn": SLIDING[0],
    "target.layers.4.self_attn.attn": WIDE[1],
    "target.layers.5.self_attn.attn": OTHERS[0],
    "other.layers.2.self_attn.attn": PLAIN[1],
}
"""Layers without a cache of their own, and those whose cache they read."""


class Backend:
    """Names itself, as an attention backend does."""

    full_cls_name = staticmethod(lambda: ("stand-in", "Backend"))
    get_name = staticmethod(lambda: "stand-in")


class Reached(Exception):
    """The second runner has found all specs; what it does with them is not asked."""


def probe() -> tuple[bool, str]:
    check_nothing_to_share()
    shares = [{reader: owner} for reader, owner in READS.items()]
    shares += [READS, dict(reversed(READS.items()))]
    for shared in shares:
        for name, runner in runners().items():
            made = groups()
            before = copy.deepcopy(made)
            try:
                found = runner(made, dict(shared))
            except KeyError as error:
                return True, f"KeyError: {error} in model runner {name}"
            check(found, before, shared)
            check_groups(made, before, shared)
    return False, f"{len(READS)} layers of three groups have the specs of those that they read"


def specs() -> dict:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    def full(heads, size, window=None):
        options = {"block_size": 16, "dtype": torch.bfloat16, "num_kv_heads": heads, "head_size": size}
        return FullAttentionSpec(**options, sliding_window=window)

    kinds = {1: SLIDING, 2: FULL, 3: OTHERS, 4: WIDE, 5: PLAIN}
    made = {1: full(1, 256, 512), 2: full(1, 512), 3: full(16, 256, 1024), 4: full(4, 512), 5: full(2, 128)}
    return {name: made[kind] for kind, names in kinds.items() for name in names}


def groups() -> list:
    """Two groups of uniform type, as with a hybrid KV cache manager that is off, and a plain one between them."""
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec, UniformTypeKVCacheSpecs

    every = specs()

    def uniform(names):
        own = {name: every[name] for name in names}
        return KVCacheGroupSpec(list(names), UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs=own))

    return [uniform(OTHERS + WIDE), KVCacheGroupSpec(list(PLAIN), every[PLAIN[0]]), uniform(SLIDING + FULL)]


def runners() -> dict:
    found = {"V1": first_runner}
    from vllm.v1.worker.gpu import attn_utils

    if hasattr(attn_utils, "get_shared_kv_cache_layers"):
        found["V2"] = second_runner
    return found


def first_runner(made, shared) -> dict:
    """What the attention groups of model runner V1 hold: by layer, the number of its group and its spec."""
    from vllm.v1.worker import gpu_model_runner

    runner = object.__new__(gpu_model_runner.GPUModelRunner)
    runner.shared_kv_cache_layers, runner.runner_only_attn_layers = shared, set()
    runner.cache_config = SimpleNamespace(kv_sharing_fast_prefill=False)
    runner.attn_groups, runner.kv_sharing_fast_prefill_eligible_layers = [], set()
    runner.vllm_config = SimpleNamespace()
    runner._check_and_update_cudagraph_mode = lambda *_, **__: None
    config = SimpleNamespace(kv_cache_groups=made)
    with (
        patch.object(gpu_model_runner, "get_layers_from_vllm_config", layers_of),
        patch.object(gpu_model_runner, "check_attention_cp_compatibility", lambda *_: None),
    ):
        runner.maybe_add_kv_sharing_layers_to_kv_cache_groups(config)
        runner.initialize_attn_backend(config)
    assert runner.runner_only_attn_layers == set(shared), runner.runner_only_attn_layers
    return by_layer(runner.attn_groups)


def second_runner(made, shared) -> dict:
    from vllm.v1.worker.gpu import attn_utils

    seen = []

    def reached(_, attn_groups):
        seen.extend(attn_groups)
        raise Reached

    fakes = {
        "get_layers_from_vllm_config": layers_of,
        "get_shared_kv_cache_layers": lambda *_: shared,
        "prepare_kernel_block_sizes": reached,
        "get_kv_sharing_fast_prefill_eligible_layers": lambda *_: set(),
    }
    with stand_ins(attn_utils, fakes):
        try:
            attn_utils.init_attn_backend(SimpleNamespace(kv_cache_groups=made), SimpleNamespace(), "cpu")
        except Reached:
            return by_layer(seen)
    raise AssertionError("model runner V2 has no kernel block sizes")


def stand_ins(module, fakes):
    """Put stand-ins into a module, those that it has."""
    stack = contextlib.ExitStack()
    for name, fake in fakes.items():
        if hasattr(module, name):
            stack.enter_context(patch.object(module, name, fake))
    return stack


def layers_of(_, __, names=None) -> dict:
    layer = SimpleNamespace(get_attn_backend=lambda: Backend, num_heads=8)
    return dict.fromkeys([*specs(), *READS] if names is None else names, layer)


def by_layer(attn_groups) -> dict:
    found = {}
    for number, some in enumerate(attn_groups):
        for group in some:
            for name in group.layer_names:
                assert name not in found, f"{name} is in two groups"
                found[name] = number, group.kv_cache_spec
    return found


def check(found, before, shared) -> None:
    """Every layer has its own spec, or that of the layer that it reads, in the same group."""
    every = specs()
    home = {name: number for number, group in enumerate(before) for name in group.layer_names}
    wanted = {name: (home[name], spec) for name, spec in every.items()}
    wanted |= {reader: wanted[owner] for reader, owner in shared.items()}
    assert found == wanted, {name: found.get(name) for name in wanted if found.get(name) != wanted[name]}


def check_groups(made, before, shared) -> None:
    """Layers are appended to their group; a group's own specs are what they were."""
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    for group, old in zip(made, before, strict=True):
        readers = [reader for reader, owner in shared.items() if owner in old.layer_names]
        assert group.layer_names == [*old.layer_names, *readers], group.layer_names
        assert type(group.kv_cache_spec) is type(old.kv_cache_spec), group.kv_cache_spec
        if isinstance(old.kv_cache_spec, UniformTypeKVCacheSpecs):
            kept = {name: group.kv_cache_spec.kv_cache_specs[name] for name in old.kv_cache_spec.kv_cache_specs}
            assert kept == old.kv_cache_spec.kv_cache_specs, kept
            more = set(group.kv_cache_spec.kv_cache_specs) - set(kept)
            assert more <= set(readers), more
        else:
            assert group.kv_cache_spec == old.kv_cache_spec, group.kv_cache_spec


def check_nothing_to_share() -> None:
    """A model without such layers is set up as before."""
    for runner in runners().values():
        made = groups()
        before = copy.deepcopy(made)
        check(runner(made, {}), before, {})
        check_groups(made, before, {})
