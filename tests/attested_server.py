"""What a real vLLM attests of its patched functions, in all its processes."""

from __future__ import annotations

import signal

import psutil

from gemmaspec.engine.attested import Attested, parse_attested
from tests.attesting import until
from tests.real import PROFILE, STATE, gemmaspec

FUNCTIONS = {
    "vllm.v1.core.kv_cache_utils.is_kv_cache_spec_uniform",
    "vllm.v1.worker.utils.add_kv_sharing_layers_to_kv_cache_groups",
    "vllm.v1.spec_decode.llm_base_proposer.SpecDecodeBaseProposer._warn_if_multimodal",
    "vllm.utils.cpu_triton_utils._expand_kernel_impl",
    "vllm.v1.sample.ops.topk_topp_sampler.apply_top_k_only",
}
RUN = STATE / "stacks" / PROFILE / "run"


def says_what_every_process_runs() -> None:
    """All of them are spawned: vLLM's platforms/cpu.py sets VLLM_WORKER_MULTIPROC_METHOD itself."""
    (stack,) = gemmaspec("status", PROFILE, "--json").json["stacks"]
    attested = stack["report"]["attested"]
    assert attested["state"] == "attested"
    titles = {one["title"] for one in attested["processes"]}
    assert {"vllm serve", "VLLM::EngineCore", "VLLM::Worker"} <= titles
    assert {name for one in attested["processes"] for name in one["functions"]} == FUNCTIONS
    assert f" in {len(titles)} processes" in gemmaspec("status", PROFILE).out
    verified = gemmaspec("patch", "verify", "--server", PROFILE)
    assert (verified.code, f" in {len(titles)} processes" in verified.err) == (0, True)


def names_one_that_says_nothing() -> None:
    """A process whose word is gone is not attested, and whoever asks for the patches is told so."""
    (worker,) = [psutil.Process(one.pid) for one in now().processes if one.title == "VLLM::Worker"]
    worker.send_signal(signal.SIGSTOP)
    try:
        (RUN / "attest/processes" / f"{worker.pid}.json").unlink()
        until(lambda: now().state == "not attested")
        verified = gemmaspec("patch", "verify", "--server", PROFILE)
        assert verified.code == 5
        assert f"VLLM::Worker (pid {worker.pid}) says nothing" in verified.out
    finally:
        worker.send_signal(signal.SIGCONT)
    until(lambda: now().state == "attested")


def now() -> Attested:
    return parse_attested((RUN / "attested.json").read_bytes())
