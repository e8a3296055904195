"""What a real vLLM attests of its patched functions, in all its processes."""

from __future__ import annotations

from tests.support.real import PROFILE, gemmaspec

FUNCTIONS = {
    "vllm.v1.core.kv_cache_utils.is_kv_cache_spec_uniform",
    "vllm.v1.worker.utils.add_kv_sharing_layers_to_kv_cache_groups",
    "vllm.v1.spec_decode.llm_base_proposer.SpecDecodeBaseProposer._warn_if_multimodal",
    "vllm.utils.cpu_triton_utils._expand_kernel_impl",
    "vllm.v1.sample.ops.topk_topp_sampler.apply_top_k_only",
}


def says_what_every_process_runs() -> None:
    """All of them are spawned: vLLM's platforms/cpu.py sets VLLM_WORKER_MULTIPROC_METHOD itself."""
    (stack,) = gemmaspec("status", PROFILE, "--json").json["stacks"]
    attested = stack["report"]["attested"]
    assert attested["state"] == "attested"
    titles = {one["title"] for one in attested["processes"]}
    assert {"vllm serve", "VLLM::EngineCore", "VLLM::Worker"} <= titles
    assert {role for one in attested["processes"] for role in one["roles"]} == {"API server", "engine core", "worker"}
    assert {name for one in attested["processes"] for name in one["functions"]} == FUNCTIONS
    assert f" in {len(titles)} processes" in gemmaspec("status", PROFILE).out
    verified = gemmaspec("patch", "verify", "--server", PROFILE)
    assert (verified.code, f" in {len(titles)} processes" in verified.err) == (0, True)
