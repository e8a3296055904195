"""vLLM's own planning of the KV cache, for made-up layers. Run by a Python that has a vLLM, or as a probe; imports nothing of gemmaspec.

    python kv_oracle.py < jobs.json > answers.json

A job has the layers (name, sliding window or none, KV heads, head size) and the flags; an answer has what vLLM would
allocate and log, or the error that ends the start. The real functions run, and the real backend classes; only the
configuration objects are fakes, since the real ones want a checkpoint and a device.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from types import SimpleNamespace
from typing import Any


def main() -> None:
    """Answer all jobs of stdin."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever vLLM prints is not an answer
    logging.disable(logging.WARNING)
    json.dump([answer(job) for job in json.load(sys.stdin)], answers)
    answers.close()


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """What vLLM plans for one job."""
    try:
        return plan(job)
    except (ValueError, NotImplementedError, AssertionError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def plan(job: dict[str, Any]) -> dict[str, Any]:
    """The same, without errors."""
    from vllm.v1.core import kv_cache_utils as utils

    config = fake_config(job)
    specs = {layer["name"]: spec_of(layer, job, config) for layer in job["layers"]}
    planning: Any = utils
    if not hasattr(utils, "get_kv_cache_configs"):  # 0.33
        from vllm.v1.core import kv_cache_planning as planning
    join_windows(planning, job["joins_windows"])
    if "stages" in job:
        return {"num_blocks": blocks_in_stages(planning, config, specs, job["stages"])}
    if planning is utils:
        (cache,) = utils.get_kv_cache_configs(config, [specs], [job["available"]])
    else:
        groups = planning.get_global_kv_cache_groups(config, [specs])
        (cache,) = planning.get_kv_cache_configs(config, [specs], [job["available"]], groups)
    concurrency = utils.get_max_concurrency_for_kv_cache_config(config, cache)
    return {
        "num_blocks": cache.num_blocks,
        "concurrency": concurrency,
        "tokens": logged_tokens(utils, config, cache, concurrency),
        "groups": sorted([len(group.layer_names), group.kv_cache_spec.block_size] for group in cache.kv_cache_groups),
        "needed": needed(planning, config, cache.kv_cache_groups),
    }


def blocks_in_stages(planning: Any, config: Any, specs: dict[str, Any], stages: list[dict[str, Any]]) -> list[int]:
    """The blocks of each pipeline stage, each of which has a worker with its layers and its memory."""
    workers = [{name: specs[name] for name in stage["names"] if name in specs} for stage in stages]
    memory = [stage["available"] for stage in stages]
    if hasattr(planning, "get_global_kv_cache_groups"):  # 0.33
        groups = planning.get_global_kv_cache_groups(config, workers)
        found = planning.get_kv_cache_configs(config, workers, memory, groups)
    else:
        found = planning.get_kv_cache_configs(config, workers, memory)
    return [cache.num_blocks for cache in found]


def join_windows(planning: Any, wanted: bool) -> None:
    """What the patch kv-spec-uniform-valueerror does: two windows are "not uniform" and no error."""
    original = getattr(planning.is_kv_cache_spec_uniform, "original", planning.is_kv_cache_spec_uniform)

    def patched(specs: Any) -> bool:
        try:
            return bool(original(specs))
        except ValueError:
            return False

    patched.original = original  # type: ignore[attr-defined]
    planning.is_kv_cache_spec_uniform = patched if wanted else original


def needed(planning: Any, config: Any, groups: Any) -> int:
    """Bytes of the longest request."""
    measure = planning._max_memory_usage_bytes_from_groups
    if measure.__code__.co_argcount == 2:
        return int(measure(config, groups))
    return int(measure(planning.DefaultKVCacheConfigBuilder(), config, groups))


def logged_tokens(utils: Any, config: Any, cache: Any, concurrency: float) -> int:
    """What "GPU KV cache size: N tokens" says."""
    if hasattr(utils, "get_kv_cache_capacity"):
        return int(utils.get_kv_cache_capacity(config, cache)[0])
    said: list[Any] = []
    kept, utils.logger = utils.logger, SimpleNamespace(info_once=lambda *a, **k: said.append(a))
    utils._report_kv_cache_config(config, cache)
    utils.logger = kept
    return int(said[0][1].replace(",", ""))


def backend_of(device: str) -> Any:
    """The attention backend that Gemma 4 gets there."""
    if device == "cpu":
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        return CPUAttentionBackend
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend

    return TritonAttentionBackend


def spec_of(layer: dict[str, Any], job: dict[str, Any], config: Any) -> Any:
    """One layer's spec, from vLLM's own Attention.get_kv_cache_spec and what the model runner does to it."""
    import dataclasses

    from vllm.model_executor.layers.attention.attention import Attention
    from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype
    from vllm.v1.attention.backend import AttentionType

    backend = backend_of(job["device"])
    dtype = layer["dtype"]
    attention = SimpleNamespace(
        attn_type=AttentionType.DECODER,
        attn_backend=backend,
        sliding_window=layer["window"],
        num_kv_heads=layer["kv_heads"],
        head_size=layer["head_dim"],
        head_size_v=layer["head_dim"],
        kv_cache_dtype=dtype,
        kv_cache_torch_dtype=kv_cache_dtype_str_to_dtype(dtype, config.model_config),
    )
    spec = Attention.get_kv_cache_spec(attention, config)
    if hasattr(backend, "customize_spec"):
        spec = backend.customize_spec(spec)
    if hasattr(spec, "indexes_kv_by_block_stride"):
        spec = dataclasses.replace(spec, indexes_kv_by_block_stride=job["device"] != "cpu")
    return spec


def fake_config(job: dict[str, Any]) -> Any:
    """What the planning reads of a VllmConfig."""
    import torch

    cache = SimpleNamespace(
        block_size=job["block_size"],
        num_gpu_blocks_override=None,
        skip_page_size_padded=None,
        prefix_cache_retention_interval=None,
        kv_cache_dtype_skip_layers=[],
        get_resolved_kv_cache_layout=layout,
    )
    model = SimpleNamespace(
        max_model_len=job["max_model_len"],
        original_max_model_len=job["max_model_len"],
        use_mla=False,
        dtype=torch.bfloat16,
        supports_kv_cache_grouping=False,
    )
    scheduler = SimpleNamespace(
        disable_hybrid_kv_cache_manager=not job["hybrid"], max_num_batched_tokens=job["max_num_batched_tokens"]
    )
    parallel = SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1, tensor_parallel_size=1)
    return SimpleNamespace(
        cache_config=cache,
        model_config=model,
        scheduler_config=scheduler,
        parallel_config=parallel,
        attention_config=SimpleNamespace(hisparse_config=None),
        device_config=SimpleNamespace(device_type="cuda"),
        additional_config={},
        speculative_config=None,
        kv_transfer_config=None,
        num_prefill_lookahead_tokens=0,
        max_in_flight_tokens=job["max_num_batched_tokens"] * job["batches"],
    )


def layout() -> Any:
    """The first choice of the backends (0.29 and newer)."""
    from vllm.v1.kv_cache_layout import KVCacheLayout

    return KVCacheLayout.LBHNC


if __name__ == "__main__":
    main()
