"""Which attention backend runs, as the layers of released vLLMs chose it."""

from __future__ import annotations

import pytest

from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.releases.backends import backend_for
from gemmaspec.core.releases.facts import releases
from gemmaspec.core.resolved.answer import known
from gemmaspec.core.resolved.resolve import resolved_of

OWN = "serve.attention_backend=null"
"""No backend is named, so that vLLM chooses."""


@pytest.mark.parametrize(
    ("name", "overrides", "vllm", "target", "draft"),
    [
        ("spark-31b-mtp", (), "0.32.0", "TRITON_ATTN", "TRITON_ATTN"),
        ("nvidia-31b-mtp", (OWN, "machine=h200",), "0.32.0", "TRITON_FLASH_ATTN", "FLASH_ATTN"),
        ("nvidia-31b-mtp", (OWN, "machine=h200", "serve.language_model_only=true"), "0.33.0", "FLASH_ATTN", "FLASH_ATTN"),
        ("nvidia-31b-mtp", (OWN, "machine=h200", "serve.kv_cache_dtype=fp8"), "0.26.0", "TRITON_ATTN", "FLASHINFER"),
        ("nvidia-31b-mtp", ("machine=h200", "serve.attention_backend=triton_attn"), "0.33.0", "TRITON_ATTN", "TRITON_ATTN"),
        ("nvidia-31b-mtp", ("machine=h200", "serve.attention_backend=None"), "0.33.0", "TRITON_FLASH_ATTN", "FLASH_ATTN"),
        ("nvidia-31b-mtp", (OWN, "machine=b200",), "0.32.0", "TRITON_FLASHINFER", "FLASHINFER"),
        ("nvidia-31b-mtp", ("machine=rtx-5090",), "0.33.0", "TRITON_ATTN", "TRITON_ATTN"),
        ("spark-31b-e2b", (), "0.32.0", "TRITON_ATTN", "TRITON_ATTN"),
    ],
)  # fmt: skip
def test_what_is_set_counts_and_else_what_vllm_chooses(
    name: str, overrides: tuple[str, ...], vllm: str, target: str | None, draft: str | None
) -> None:
    profile = load_profile(name, overrides=overrides).profile
    resolved = resolved_of(profile, vllm=vllm)
    assert known(resolved.backend) == target
    assert known(resolved.attention.backend("draft")) == draft


@pytest.mark.parametrize("vllm", releases())
@pytest.mark.parametrize("capability", ["8.0", "9.0", "12.1"])
def test_every_release_was_asked(vllm: str, capability: str) -> None:
    for masks in (True, False):
        assert backend_for(vllm, capability, masks=masks, fp8=False)
