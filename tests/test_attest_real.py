"""A real vLLM attests its patched functions in all its processes, and a plugin that replaces one ends the start."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import httpx
import psutil
import pytest

from gemmaspec import data
from gemmaspec.engine.attested import parse_attested
from tests.attesting import until
from tests.real import PORT, PROFILE, SHARED, STATE, gemmaspec, up

pytestmark = pytest.mark.real_process

FUNCTIONS = {
    "vllm.v1.core.kv_cache_utils.is_kv_cache_spec_uniform",
    "vllm.v1.worker.utils.add_kv_sharing_layers_to_kv_cache_groups",
    "vllm.v1.spec_decode.llm_base_proposer.SpecDecodeBaseProposer._warn_if_multimodal",
}


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_every_process_attests_before_the_server_is_ready(method: str) -> None:
    done = up("process", "--set", f"env.VLLM_WORKER_MULTIPROC_METHOD={method}", "--set", "env.VLLM_PLUGINS=")
    try:
        assert done.code == 0, done.err
        attested = done.json["report"]["attested"]
        assert attested["state"] == "attested"
        titles = {one["title"] for one in attested["processes"]}
        assert {"vllm serve", "VLLM::EngineCore", "VLLM::Worker"} <= titles
        assert {name for one in attested["processes"] for name in one["functions"]} == FUNCTIONS
        assert f"attested  in {len(titles)} processes" in gemmaspec("status", PROFILE).out
        verified = gemmaspec("patch", "verify", "--server", PROFILE)
        assert (verified.code, f"attested in {len(titles)} processes" in verified.err) == (0, True)
        if method == "spawn":
            look_at_one_that_says_nothing()
    finally:
        gemmaspec("down", PROFILE)


def look_at_one_that_says_nothing() -> None:
    """A process whose word is gone is not attested, and whoever asks for the patches is told so."""
    run = STATE / "stacks" / PROFILE / "run"
    (worker,) = [one for one in psutil.process_iter(["cmdline"]) if is_worker_of(one, run)]
    worker.send_signal(signal.SIGSTOP)
    try:
        (run / "attest/processes" / f"{worker.pid}.json").unlink()
        until(lambda: parse_attested((run / "attested.json").read_bytes()).state == "not attested")
        verified = gemmaspec("patch", "verify", "--server", PROFILE)
        assert verified.code == 5
        assert f"VLLM::Worker (pid {worker.pid}) says nothing" in verified.out
    finally:
        worker.send_signal(signal.SIGCONT)
    until(lambda: parse_attested((run / "attested.json").read_bytes()).state == "attested")


def is_worker_of(process: psutil.Process, run: Path) -> bool:
    attested = parse_attested((run / "attested.json").read_bytes())
    return process.pid in {one.pid for one in attested.processes if one.title == "VLLM::Worker"}


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

text = "def value(a):\\n    return a + 1\\n"
for name, wrap in {
    "compile": torch.compile, "no_grad": torch.no_grad(), "inference_mode": torch.inference_mode(),
    "disable": torch._dynamo.disable, "library": lambda fn: torch._dynamo.allow_in_graph(fn),
}.items():
    module = types.ModuleType("m")
    exec(compile(text, "m.py", "exec"), vars(module))
    digests = [code_of.digest(module.value.__code__)]
    module.value = wrap(module.value)
    other, _ = code_of.difference(module, "value", digests, code_of.Digests())
    assert other is code_of.SAME, (name, other)
print("seen through")
"""


def test_the_wrappers_of_the_real_torch_are_seen_through() -> None:
    python = next((SHARED / "runtimes").glob("*/bin/python"))
    words = [str(python), "-c", WRAPPERS, str(data.LAUNCHER.parent)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout == "seen through\n", done.stderr
