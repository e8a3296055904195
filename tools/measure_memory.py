"""Measure how much GPU memory vLLM uses in each start: loading, profiling, KV cache, CUDA graphs.

    python3 measure_memory.py RUNS.json OUT --seconds N

RUNS.json is a list of `{name, args, env}`: the arguments of `vllm.LLM` and variables of the environment. Every run is
its own process, forked after vLLM is imported and before CUDA is used, with the engine inside it. OUT gets `NAME.log`,
vLLM's log, and `NAME.json`, the sizes of vLLM's own objects; runs whose JSON exists are skipped, and no run starts
after N seconds. The peak of the whole GPU is read from NVML every 10 ms, so nothing else may run on it. Written for
vLLM 0.26.0.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # querying CUDA itself would break the fork
PATIENCE = 420  # seconds for one run

Numbers = dict[str, Any]


def allocator() -> Numbers:
    """Return torch's current and peak bytes since the last reset, and the GPU's free bytes."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return {
        "allocated": torch.cuda.memory_allocated(),
        "allocated_peak": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "reserved_peak": torch.cuda.max_memory_reserved(),
        "gpu_free": free,
        "gpu_total": total,
    }


class Watcher(threading.Thread):
    """Reads the memory use of the whole GPU in a thread."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.readings: list[tuple[float, int]] = []

    def run(self) -> None:
        from vllm.third_party import pynvml

        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        while True:
            self.readings.append((time.perf_counter(), int(pynvml.nvmlDeviceGetMemoryInfo(gpu).used)))
            time.sleep(0.01)

    def most_since(self, began: float) -> int:
        return max((used for when, used in self.readings if when >= began), default=0)


WATCHER = Watcher()


def around(owner: type, method: str, notes: Numbers, label: str) -> None:
    """Record the allocator before and after a method, with its own peak, and its duration."""
    import torch

    original: Callable[..., Any] = getattr(owner, method)

    def measured(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, began = allocator(), time.perf_counter()
        torch.cuda.reset_peak_memory_stats()
        result = original(self, *args, **kwargs)
        notes[label] = {
            "before": before,
            "after": allocator(),
            "gpu_used_at_most": WATCHER.most_since(began),
            "seconds": round(time.perf_counter() - began, 2),
        }
        if isinstance(result, int):
            notes[label]["returned"] = result
        return result

    setattr(owner, method, measured)


def watch(notes: Numbers) -> None:
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner as SecondRunner
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm.v1.worker.gpu_worker import Worker

    around(SpecDecodeBaseProposer, "load_model", notes, "load_draft")
    for runner in (GPUModelRunner, SecondRunner):
        around(runner, "load_model", notes, "load")
        around(runner, "profile_run", notes, "profile_run")
        around(runner, "profile_cudagraph_memory", notes, "profile_graphs")
        around(runner, "capture_model", notes, "capture")
    around(Worker, "compile_or_warm_up_model", notes, "warm_up")


def parts(model: Any) -> Numbers:
    """Return bytes of parameters and buffers by module, three names deep; a shared tensor counts once."""
    seen: set[int] = set()
    sizes: Numbers = {}
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in tensors:
            if tensor.untyped_storage().data_ptr() in seen:
                continue
            seen.add(tensor.untyped_storage().data_ptr())
            key = f"{kind} " + ".".join(name.split(".")[:-1][:3])
            sizes[key] = sizes.get(key, 0) + tensor.untyped_storage().nbytes()
    return sizes


def groups(kv: Any) -> list[Numbers]:
    """Return the KV cache groups: which kinds of layers, how many, bytes of a block."""
    found = []
    for group in kv.kv_cache_groups:
        specs = getattr(group.kv_cache_spec, "kv_cache_specs", None) or {"": group.kv_cache_spec}
        kinds: Numbers = {}
        for spec in specs.values():
            shape = [getattr(spec, key, None) for key in ("num_kv_heads", "head_size", "sliding_window", "block_size")]
            key = f"{type(spec).__name__} {shape} {spec.dtype} page {spec.page_size_bytes}"
            kinds[key] = kinds.get(key, 0) + 1
        spec = group.kv_cache_spec
        found.append({
            "spec": type(spec).__name__, "layers": len(group.layer_names), "kinds": kinds,
            "block_size": spec.block_size, "page_size_bytes": spec.page_size_bytes,
        })  # fmt: skip
    return found


def engine_numbers(core: Any) -> Numbers:
    """Return the sizes in the worker and the scheduler after the start."""
    worker = core.model_executor.driver_worker.worker
    kv, config = core.scheduler.kv_cache_config, core.vllm_config
    drafter = getattr(worker.model_runner, "drafter", None)
    return {
        "runner": type(worker.model_runner).__module__,
        "torch_total": worker.init_snapshot.total_memory,
        "free_at_start": worker.init_snapshot.free_memory,
        "requested": int(worker.requested_memory),
        "model_memory_usage": int(worker.model_runner.model_memory_usage),
        "non_torch": worker.non_torch_memory,
        "peak_activation": worker.peak_activation_memory,
        "cudagraph_estimate": worker.cudagraph_memory_estimate,
        "available_kv": int(worker.available_kv_cache_memory_bytes),
        "num_gpu_blocks": config.cache_config.num_gpu_blocks,
        "block_size": config.cache_config.block_size,
        "cache_dtype": config.cache_config.cache_dtype,
        "max_model_len": config.model_config.max_model_len,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "capture_sizes": config.compilation_config.cudagraph_capture_sizes,
        "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
        "attention_backend": str(config.attention_config.backend),
        "kv_tensors": len(kv.kv_cache_tensors),
        "kv_bytes": sum(tensor.size for tensor in kv.kv_cache_tensors),
        "kv_groups": groups(kv),
        "target_parts": parts(worker.model_runner.get_model()),
        "draft_parts": parts(drafter.model) if drafter is not None else None,
    }


def serve_once(llm: Any, core: Any) -> Numbers:
    """Run as many long prompts at once as the settings allow; return what the allocator needed."""
    import torch
    from vllm import SamplingParams

    config = core.vllm_config
    room = config.model_config.max_model_len - 64
    length = min(room, config.scheduler_config.max_num_batched_tokens)
    prompts = [
        {"prompt_token_ids": [2] + [300 + (i * 7 + n) % 500 for i in range(length - 1)]}
        for n in range(config.scheduler_config.max_num_seqs)
    ]
    torch.cuda.reset_peak_memory_stats()
    before = allocator()
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, detokenize=False)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    return {"prompts": len(prompts), "prompt_tokens": length, "tokens": tokens, "before": before, "after": allocator()}


def measure(run: Numbers) -> Numbers:
    import vllm

    notes: Numbers = {"name": run["name"], "args": run["args"], "env": run.get("env", {}), "vllm": vllm.__version__}
    os.environ.update(notes["env"])
    WATCHER.start()
    watch(notes)
    began = time.perf_counter()
    llm = vllm.LLM(**run["args"])
    notes["start_seconds"] = round(time.perf_counter() - began, 1)
    core: Any = llm.llm_engine.engine_core.engine_core  # type: ignore[attr-defined]
    notes["ready"] = allocator()
    notes["gpu_used_at_most"] = WATCHER.most_since(began)
    notes["engine"] = engine_numbers(core)
    try:
        notes["served"] = serve_once(llm, core)
    except Exception as error:
        traceback.print_exc()
        notes["served"] = {"error": repr(error)[:500]}
    return notes


def child(run: Numbers, out: Path) -> None:
    """Do one run in the forked process, and exit."""
    log = os.open(out / f"{run['name']}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        notes = measure(run)
        (out / f"{run['name']}.json").write_text(json.dumps(notes, indent=1))
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait(pid: int, patience: float) -> str:
    """Return how the process ended; kill it if it takes longer."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return f"exit {os.waitstatus_to_exitcode(status)}"
        time.sleep(0.05)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "too slow"


def import_everything() -> None:
    """Import what every run needs, so that each fork already has it."""
    import vllm.model_executor.models.gemma4_mm
    import vllm.v1.engine.core
    import vllm.v1.spec_decode.draft_model
    import vllm.v1.worker.gpu.model_runner
    import vllm.v1.worker.gpu_model_runner
    import vllm.v1.worker.gpu_worker  # noqa: F401


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=500)
    options = parser.parse_args()
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    import_everything()
    print(f"imported in {time.monotonic() - began:.1f} s", flush=True)
    for run in json.loads(options.runs.read_text()):
        left = options.seconds - (time.monotonic() - began)
        if (options.out / f"{run['name']}.json").exists():
            continue
        if left < run.get("expect", 20):
            print(f"{run['name']}: skipped, {left:.0f} s left", flush=True)
            continue
        started = time.monotonic()
        pid = os.fork()
        if not pid:
            child(run, options.out)
        print(f"{run['name']}: {wait(pid, min(PATIENCE, left + 30))}, {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
