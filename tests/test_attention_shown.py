"""Which attention backend commands show: the expected one, and the one that a log names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmaspec.deploy.attention import expected, logged, words
from gemmaspec.profile.load import load_profile
from tests.fit_shapes import checkpoint


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
    assert words(expected(profile)) == shown


def test_a_target_that_sees_no_images_has_the_plain_backend() -> None:
    profile = load_profile("spark-31b", overrides=("machine=h200", "runtime.vllm=0.33.0", "image=")).profile
    assert expected(profile, replace(checkpoint("31B"), modalities=frozenset({"text"}))) == {"target": "FLASH_ATTN"}


def test_a_log_names_each_backend_once_and_the_target_first() -> None:
    lines = (
        "INFO 11-23 10:00:00 [cuda.py:310] Using TRITON_FLASH_ATTN attention backend out of potential backends: […]",
        "INFO 11-23 10:00:01 [cuda.py:310] Using AttentionBackendEnum.FLASH_ATTN backend.",
        "INFO 11-23 10:00:01 [cuda.py:310] Using TRITON_FLASH_ATTN attention backend out of potential backends: […]",
        "INFO 11-23 10:00:02 [x.py:1] Using max model len 8192",
    )
    assert logged(lines) == ("TRITON_FLASH_ATTN", "FLASH_ATTN")
