"""The `vllm serve` command line and the speculative config."""

from __future__ import annotations

import json
from pathlib import Path

from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.releases.facts import spans
from gemmaspec.run.stack.paths import container_paths, host_paths
from gemmaspec.run.stack.serve import serve_command, served_model, speculative_config


def test_the_31b_with_its_e2b_gets_the_flags_of_its_source() -> None:
    profile = load_profile("spark-31b-e2b").profile
    paths = container_paths(profile)
    assert serve_command(profile, paths) == (
        *("vllm", "serve", "LilaRest/gemma-4-31B-it-NVFP4-turbo", "--host", "0.0.0.0", "--port", "8000"),
        *("--served-model-name", "LilaRest/gemma-4-31B-it-NVFP4-turbo"),
        *("--quantization", "modelopt", "--max-model-len", "131072", "--max-num-seqs", "1"),
        *("--gpu-memory-utilization", "0.8", "--kv-cache-dtype", "fp8", "--enable-prefix-caching"),
        *("--disable-hybrid-kv-cache-manager", "--trust-remote-code"),
        *("--chat-template", "/gemmaspec/chat-template.jinja", "--chat-template-content-format", "openai"),
        *("--default-chat-template-kwargs", '{"enable_thinking": false}'),
        *("--enable-auto-tool-choice", "--tool-call-parser", "gemma4"),
    )
    assert speculative_config(profile, paths) == {
        "method": "draft_model",
        "model": "mikeytag/gemma-4-E2B-it-NVFP4",
        "quantization": "modelopt",
        "num_speculative_tokens": 4,
        "draft_tensor_parallel_size": 1,
    }


def test_false_is_said_and_none_is_not() -> None:
    profile = load_profile("tiny-cpu", overrides=["serve.enforce_eager=false", "serve.skip_mm_profiling=null"]).profile
    command = serve_command(profile, container_paths(profile))
    assert "--no-enforce-eager" in command
    assert not [word for word in command if "mm-profiling" in word]


def test_maps_become_json() -> None:
    profile = load_profile("tiny-cpu", overrides=["serve.limit_mm_per_prompt={image: 0, audio: 0}"]).profile
    command = serve_command(profile, container_paths(profile))
    assert json.loads(command[command.index("--limit-mm-per-prompt") + 1]) == {"image": 0, "audio": 0}


def test_local_models_are_mounted_in_a_container_and_named_as_they_are_on_the_host(tmp_path: Path) -> None:
    profile = load_profile("tiny-cpu", overrides=["serve.served_model_name=null"]).profile
    assert container_paths(profile).target == "/models/target"
    paths = host_paths(profile, folder=tmp_path, state=tmp_path / "state")
    assert paths.draft == f"{tmp_path}/state/tiny/tiny-draft"
    assert paths.host == "127.0.0.1"
    assert served_model(profile, paths) == f"{tmp_path}/state/tiny/tiny-target"


def test_requests_of_every_second_stay_out_of_the_access_log() -> None:
    def quiet(*overrides: str) -> bool:
        profile = load_profile("tiny-cpu", overrides=[*overrides]).profile
        return "--disable-access-log-for-endpoints /health,/metrics" in " ".join(
            serve_command(profile, container_paths(profile))
        )

    assert spans("flag", "--disable-access-log-for-endpoints") == "in all releases from 0.19.0 on"
    assert quiet()
    assert quiet("runtime.vllm=0.19.0")
    assert not quiet("runtime.vllm=0.18.1")
    assert not quiet("runtime.vllm=null", "image=own/vllm:nightly")  # unknown what it has
    assert not quiet("serve.extra_args=[--disable-uvicorn-access-log]")


def test_pages_of_other_sites_read_no_answers() -> None:
    def closed(*overrides: str) -> bool:
        profile = load_profile("tiny-cpu", overrides=[*overrides]).profile
        return "--allowed-origins []" in " ".join(serve_command(profile, container_paths(profile)))

    assert spans("flag", "--allowed-origins") == "in all releases from 0.19.0 on"
    assert closed("runtime.vllm=0.19.0")
    assert closed("runtime.vllm=0.31.0")
    assert not closed("runtime.vllm=0.32.0")  # none is allowed by default
    assert not closed("runtime.vllm=0.31.0", 'serve.extra_args=["--allowed-origins=[\\"http://chat\\"]"]')


def test_without_speculation_there_is_no_config() -> None:
    profile = load_profile("tiny-cpu", no_spec=True).profile
    assert speculative_config(profile, container_paths(profile)) is None


def test_further_arguments_come_last_and_unchanged() -> None:
    profile = load_profile("tiny-cpu", overrides=["serve.extra_args=[--max-logprobs, '5 $x']"]).profile
    assert serve_command(profile, container_paths(profile))[-2:] == ("--max-logprobs", "5 $x")
