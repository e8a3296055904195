"""A plugin that replaces a patched function ends the start of a real vLLM; real wrappers are seen through."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import httpx
import pytest

from gemmaspec.check.proof.environment import triton_folder
from gemmaspec.core import data
from tests.support.real import PORT, PROFILE, SHARED, STATE, gemmaspec, up

pytestmark = pytest.mark.real_process


def test_a_plugin_that_replaces_a_patched_function_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "foreign_plugin.py").write_text(
        "def register():\n"
        "    from vllm.v1.core import kv_cache_utils\n"
        "    kv_cache_utils.is_kv_cache_spec_uniform = lambda kv_cache_spec: True\n"
    )
    info = tmp_path / "foreign-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nfaster = foreign_plugin:register\n")
    done = up("process", "--set", f"env.PYTHONPATH={tmp_path}")
    try:
        assert done.code == 5, done.err
        assert "kv_cache_utils.is_kv_cache_spec_uniform is not the patched one" in done.err
        assert "of the plugin faster (foreign_plugin:register)" in done.err
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{PORT}/health", trust_env=False)
        report = json.loads((STATE / "stacks" / PROFILE / "run/report.json").read_text())
        assert [one["name"] for one in report["attestation"]["plugins"]] == ["faster"]
    finally:
        gemmaspec("down", PROFILE)


WRAPPERS = """\
import sys, types
sys.path.insert(0, sys.argv[1])
import attest_code as code_of
import torch
from torch.utils.checkpoint import checkpoint
from functools import partial

text = "import torch\\ndef value(a):\\n    return a + 1\\n"
hunk = {"scope": "value", "old": ["x"], "new": ["    return a + 1"]}
file = {"file": "/nonexistent", "text": text, "hunks": [hunk]}
(wants,) = code_of.expected(file).functions.values()
for name, wrap in {
    "compile": torch.compile, "no_grad": torch.no_grad(), "inference_mode": torch.inference_mode(),
    "disable": torch._dynamo.disable, "library": lambda fn: torch._dynamo.allow_in_graph(fn),
    "script": torch.jit.script, "trace": lambda fn: torch.jit.trace(fn, torch.zeros(1)),
    "checkpoint": lambda fn: partial(checkpoint, fn),
}.items():
    module = types.ModuleType("m")
    path = sys.argv[2] + "/m.py"
    open(path, "w").write(text)
    exec(compile(text, path, "exec"), vars(module))
    module.value = wrap(module.value)
    found = code_of.difference(module, "value", wants)
    assert not found.what, (name, found)
print("seen through")
"""


def test_the_wrappers_of_the_real_torch_are_seen_through(tmp_path: Path) -> None:
    python = next((SHARED / "runtimes").glob("*/bin/python"))
    words = [str(python), "-c", WRAPPERS, str(data.LAUNCHER.parent), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout == "seen through\n", done.stderr


KERNELS = """\
import sys
sys.path[:0] = sys.argv[1:3]
import importlib.util
import attest_code as code_of
import triton
from triton.runtime import autotuner, jit

path = sys.argv[3] + "/kernels.py"
text = "def value(a, b=2):\\n    return a + b\\n\\ndef stock(a, b=2):\\n    return a\\n"
open(path, "w").write(text)
hunk = {"scope": "value", "old": ["x"], "new": ["    return a + b"]}
(wants,) = code_of.expected({"file": "/nonexistent", "text": text, "hunks": [hunk]}).functions.values()

def look(made):
    spec = importlib.util.spec_from_file_location("kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.value = made(triton.jit(module.value), triton.jit(module.stock))
    return code_of.difference(module, "value", wants).what

def with_run(kernel, other):
    kernel.run = other.run
    return kernel

def without_parameters(kernel, other):
    kernel.params.clear()
    return kernel

class Pretending(jit.JITFunction):
    def run(self, *args, **kwargs):
        return None

Pretending.__module__, Pretending.__qualname__ = "triton.runtime.jit", "JITFunction"

def keeping(kernel, other):
    tuner = autotuner.Heuristics(other, other.arg_names, {})
    tuner.kept = kernel
    return tuner

right = {
    "kernel": lambda kernel, other: kernel,
    "heuristics": lambda kernel, other: autotuner.Heuristics(kernel, kernel.arg_names, {}),
    "tuned": lambda kernel, other: autotuner.Heuristics(autotuner.Heuristics(kernel, kernel.arg_names, {}), [], {}),
}
wrong = {
    "run of another": with_run,
    "no parameters": without_parameters,
    "a class that pretends": lambda kernel, other: Pretending(kernel.fn),
    "a tuner of another": keeping,
}
print({name: look(made) for name, made in right.items()})
print([name for name, made in wrong.items() if not look(made)])
"""


def test_what_replaces_a_kernel_of_the_real_triton_is_seen(tmp_path: Path) -> None:
    python = next((SHARED / "runtimes").glob("cpu-*/bin/python"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GEMMASPEC_STATE", str(SHARED))
        triton = triton_folder(python, progress=print)
    words = [str(python), "-c", KERNELS, str(data.LAUNCHER.parent), str(triton), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [str(dict.fromkeys(("kernel", "heuristics", "tuned"), "")), "[]"], done.stderr
