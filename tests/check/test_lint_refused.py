"""GS307 for what both accepted and what died when layers were built: the answers of validate_configuration."""

from __future__ import annotations

import json

import pytest

from gemmaspec.cli.app import run

TEXT = "serve.language_model_only=true"


def said(capsys: pytest.CaptureFixture[str], *sets: str, release: str = "0.33.0") -> str:
    """Return the messages of GS307 for a 31B."""
    words = [word for one in ("speculative=", "draft=", "serve.attention_backend=", *sets) for word in ("--set", one)]
    run(["profile", "lint", "nvidia-31b-mtp", *words, "--release", release, "--json"])
    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    return "; ".join(one["message"] for one in profile["findings"] if one["code"] == "GS307")


@pytest.mark.parametrize("release", ["0.26.0", "0.32.0", "0.33.0"])
@pytest.mark.parametrize(
    "sets",
    [
        ("machine=dgx-spark", "serve.kv_cache_dtype=nvfp4", TEXT),
        ("machine=h200", "serve.kv_cache_dtype=fp8_inc"),
        ("machine=h200", "serve.kv_cache_dtype=fp8_ds_mla", TEXT),
        ("machine=h200", "serve.attention_backend=FLASHMLA", TEXT),
        ("machine=h200", "serve.attention_backend=TURBOQUANT", TEXT),
        ("machine=h200", "serve.attention_backend=CPU_ATTN", TEXT),
        ("machine=h200", "serve.attention_backend=ROCM_ATTN", TEXT),
        ("machine=a100", 'serve.extra_args=["--attention-config", "{\\"backend\\": \\"FLASH_ATTN\\"}"]', TEXT),
        ("machine=h200", "serve.attention_backend=FLEX_ATTENTION", "serve.kv_cache_dtype=fp8"),
    ],
    ids=str,
)
def test_what_no_layer_can_be_built_with_is_an_error(
    sets: tuple[str, ...], release: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, *sets, release=release)


@pytest.mark.parametrize(
    "sets",
    [
        ("machine=dgx-spark", "serve.kv_cache_dtype=fp8"),
        ("machine=h200", "serve.kv_cache_dtype=fp8"),
        ("machine=h200", "serve.kv_cache_dtype=int8_per_token_head"),
        ("machine=h200", "serve.attention_backend=TRITON_ATTN", "serve.kv_cache_dtype=fp8"),
        ("machine=h200", "serve.attention_backend=FLASH_ATTN", TEXT),
        ("machine=a100", "serve.attention_backend=FLEX_ATTENTION", TEXT),
        ("machine=rtx-3090",),
        ("machine=b200",),
    ],
    ids=str,
)
def test_what_vllm_serves_is_silent(sets: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, *sets) == ""


def test_layers_that_share_a_cache_are_not_for_flex_attention(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--set",
        "serve.attention_backend=FLEX_ATTENTION",
        "--set",
        "machine=h200",
        "--release",
        "0.33.0",
        "--json",
    ]
    run(["profile", "lint", "nvidia-31b-mtp", *words])
    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    assert any("share the KV cache" in one["message"] for one in profile["findings"] if one["code"] == "GS307")
