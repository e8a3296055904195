"""What real servers log of their KV cache, and what `gemmaspec fit` says of the same flags: equal, to the block."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gemmaspec.core.data import MODELS
from tests.support.real import PORT, PROFILE, Done, cpu_python, gemmaspec

LOGGED = re.compile(r"KV cache size: ([\d,]+) tokens, Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")


def sets(**values: object) -> list[str]:
    """--set for keys of `serve`."""
    return [word for key, value in values.items() for word in ("--set", f"serve.{key}={value}")]


OTHER_SHAPE = """
import json, pathlib, shutil, sys
from transformers import Gemma4Config, Gemma4ForConditionalGeneration
shipped, out = map(pathlib.Path, sys.argv[1:])
config = json.loads((shipped / "config.json").read_text())
kinds = ["full_attention" if index % 3 == 2 else "sliding_attention" for index in range(13)]
config["text_config"].update(num_hidden_layers=13, layer_types=kinds, sliding_window=256)
config["text_config"].update(num_attention_heads=4, num_key_value_heads=4, num_global_key_value_heads=2)
shutil.copytree(shipped, out)
(out / "config.json").write_text(json.dumps(config))
Gemma4ForConditionalGeneration(Gemma4Config.from_pretrained(out)).bfloat16().save_pretrained(out)
(out / "config.json").write_text(json.dumps(config))
"""


def other_shape(out: Path) -> list[str]:
    """Make a target with 13 layers of which every third is full, window 256 and more KV heads; it was taught nothing.

    The words with which `up` serves it alone, with the hybrid manager and a small batch.
    """
    script = [str(cpu_python()), "-c", OTHER_SHAPE, str(MODELS / "tiny-target"), str(out)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [*OTHER, *FP8, "--set", f"target.model={out}"]


SMALL = [
    *sets(block_size=32, max_model_len=2048, max_num_seqs=5),
    *("--set", "env.VLLM_CPU_KVCACHE_SPACE=2"),
]
"""Small blocks, a longer context, five requests at once and 2 GiB: the server of test_bench_vllm."""
OTHER = ["--no-spec", *sets(disable_hybrid_kv_cache_manager="null", max_num_batched_tokens=300, max_model_len=3000)]
FP8 = sets(kv_cache_dtype="fp8") if "avx512f" in Path("/proc/cpuinfo").read_text() else []
"""vLLM keeps an FP8 cache only on a CPU with AVX-512 or AMX (v1/attention/backends/cpu_attn.py of 0.32)."""


def compare(flags: list[str]) -> None:
    """Hold what `fit` says of the flags against the server that runs with them, on any engine."""
    said = gemmaspec("fit", PROFILE, "--json", *flags)
    assert said.code == 0, said.err
    cache = said.json["kv_cache"]
    info = cache_config_info()
    assert cache["num_blocks"] == int(info["num_gpu_blocks"])
    assert cache["size_tokens"] == int(info["kv_cache_size_tokens"])
    assert cache["max_concurrency"] == round(float(info["kv_cache_max_concurrency"]), 3)
    assert said.json["flags"]["block_size"] == int(info["block_size"])
    assert logged(gemmaspec("logs", PROFILE)) == (
        cache["size_tokens"],
        said.json["flags"]["max_model_len"],
        f"{cache['max_concurrency']:.2f}",
    )


def cache_config_info() -> dict[str, Any]:
    """The labels of vllm:cache_config_info."""
    text = httpx.get(f"http://127.0.0.1:{PORT}/metrics", timeout=120, trust_env=False).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return dict(families["vllm:cache_config_info"].samples[0].labels)


def logged(log: Done) -> tuple[int, int, str]:
    """Tokens, max_model_len and concurrency as the engine logged them."""
    found = LOGGED.search(log.out)
    assert found, log.out[-2000:]
    tokens, length, concurrency = found.groups()
    return int(tokens.replace(",", "")), int(length.replace(",", "")), concurrency
