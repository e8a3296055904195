"""Which attention backend commands show: the expected one, and the one that a log names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.resolved.resolve import resolved_of
from gemmaspec.run.kept.attention import Logged, expected, logged, words
from tests.support.fit_shapes import checkpoint


@pytest.mark.parametrize(
    ("vllm", "sets", "shown"),
    [
        ("0.33.0", ("machine=h200",), "target TRITON_FLASH_ATTN, draft FLASH_ATTN"),
        ("0.33.0", ("machine=dgx-spark",), "target TRITON_ATTN, draft TRITON_ATTN"),
        ("0.33.0", ("machine=b200", "serve.attention_backend=TRITON_ATTN"), "target TRITON_ATTN, draft TRITON_ATTN"),
        ("0.33.0", ("machine=cpu",), ""),
    ],
)
def test_a_profile_names_the_backends_that_it_will_get(vllm: str, sets: tuple[str, ...], shown: str) -> None:
    profile = load_profile("spark-31b-mtp", overrides=(f"runtime.vllm={vllm}", "image=", *sets)).profile
    assert words(expected(resolved_of(profile))) == shown


def test_a_decoder_alone_has_the_plain_backend_and_a_model_without_its_towers_has_not() -> None:
    """is_mm_prefix_lm follows the text part of a `gemma4`: vLLM 0.32.0 says True with `vision_config: null`, too."""
    profile = load_profile("spark-31b", overrides=("machine=h200", "runtime.vllm=0.33.0", "image=")).profile
    alone, bare = replace(checkpoint("31B"), model_type="gemma4_text"), checkpoint("31B")
    assert expected(resolved_of(profile, target=alone)) == {"target": "FLASH_ATTN"}
    assert expected(resolved_of(profile, target=replace(bare, modalities=frozenset({"text"})))) == {
        "target": "TRITON_FLASH_ATTN"
    }


def test_a_log_names_each_backend_once_and_the_target_first() -> None:
    lines = (
        "INFO 11-23 10:00:00 [cuda.py:310] Using TRITON_FLASH_ATTN attention backend out of potential backends: […]",
        "INFO 11-23 10:00:01 [cuda.py:310] Using AttentionBackendEnum.FLASH_ATTN backend.",
        "INFO 11-23 10:00:01 [cuda.py:310] Using TRITON_FLASH_ATTN attention backend out of potential backends: […]",
        "INFO 11-23 10:00:02 [x.py:1] Using max model len 8192",
    )
    assert logged(lines) == Logged(backends=("TRITON_FLASH_ATTN", "FLASH_ATTN"))


def test_a_log_tells_of_graphs_that_vllm_gave_up_and_of_memory_that_is_not_there() -> None:
    """The texts of vllm/config/compilation.py and vllm/v1/worker/gpu_model_runner.py, 0.32.0."""
    lines = (
        "WARNING [compilation.py:1438] CUDAGraphMode.FULL_AND_PIECEWISE is not supported with spec-decode for attention "
        "backend FlashInferBackend (support: AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE); setting "
        "cudagraph_mode=PIECEWISE",
        "INFO [gpu_model_runner.py:6475] Estimated CUDA graph memory: -20.13 GiB total",
        "INFO [gpu_model_runner.py:6475] Estimated CUDA graph memory: 0.31 GiB total",
    )
    assert logged(lines).mode == "PIECEWISE"
    assert logged(lines).warnings == (
        "vLLM estimated -20.13 GiB for CUDA graphs, so the KV cache took memory that is not there: set serve.extra_args: "
        "[--kv-cache-memory-bytes, BYTES]",
    )


@pytest.mark.parametrize(
    ("log", "mode"),
    [
        ("vllm-0.26.0-gpu-pair-ready.log", "FULL_AND_PIECEWISE"),
        ("vllm-0.26.0-gpu-eager-ready.log", "NONE"),
    ],
)
def test_the_mode_of_a_real_log_is_what_its_configuration_says(log: str, mode: str) -> None:
    lines = (Path(__file__).parent.parent / "logs" / log).read_text().splitlines()
    assert logged(lines).mode == mode


_BEGUN = "Initializing a V1 LLM engine (v0.32.0) with config: …, 'cudagraph_mode': <CUDAGraphMode.{}: (2, 1)>, …"


@pytest.mark.parametrize(
    ("lines", "mode", "eager"),
    [
        ((_BEGUN.format("FULL_AND_PIECEWISE"),), "FULL_AND_PIECEWISE", False),
        (
            (
                _BEGUN.format("FULL_AND_PIECEWISE"),
                "Cudagraph mode FULL_AND_PIECEWISE requires piecewise capture, but the loaded model provides neither a "
                "compiled submodule nor breakable CUDA graphs. Overriding to FULL_DECODE_ONLY.",
            ),
            "FULL_DECODE_ONLY",
            False,
        ),
        (
            (
                _BEGUN.format("FULL_DECODE_ONLY"),
                "CUDAGraphMode.FULL_DECODE_ONLY is not supported with X backend (support: AttentionCGSupport.NEVER); "
                "setting cudagraph_mode=NONE because attention is not compiled piecewise",
            ),
            "NONE",
            False,
        ),
        (
            (
                _BEGUN.format("FULL_AND_PIECEWISE"),
                "DFlash draft attention (FlashInferBackend) does not support full CUDA graphs; "
                "running the draft eagerly.",
            ),
            "FULL_AND_PIECEWISE",
            True,
        ),
        ((_BEGUN.format("NONE"), _BEGUN.format("FULL")), "FULL", False),
        (("nothing of it",), None, False),
    ],
)
def test_the_last_start_of_a_log_counts_with_what_it_lowers(
    lines: tuple[str, ...], mode: str | None, eager: bool
) -> None:
    found = logged(lines)
    assert (found.mode, found.eager_draft) == (mode, eager)
