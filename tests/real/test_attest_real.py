"""A plugin that replaces a patched function ends the start of a real vLLM; real wrappers are seen through."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import httpx
import pytest

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
