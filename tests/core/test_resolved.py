"""`gemmaspec/core/resolved`: what vLLM does with a profile, and what is said where nobody knows it."""

from __future__ import annotations

import json

import pytest

from gemmaspec.core.checkpoint.published.shipped import checkpoint_of, shipped_for
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.resolved.answer import Unknown, known
from gemmaspec.core.resolved.resolve import Resolved, resolved_of

HOPPER = ("machine=h200", "image=", "runtime.vllm=0.32.0", "serve.attention_backend=")
SIGHT = "{image: 0, video: 0}"


def resolved(name: str, *sets: str, read: bool = False) -> Resolved:
    profile = load_profile(name, overrides=(*HOPPER, *sets)).profile
    shapes = shipped_for(profile.target.model) if read else None
    return resolved_of(profile, target=checkpoint_of(shapes) if shapes else None)


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize(
    ("limits", "backend", "graphs"),
    [
        (SIGHT, "TRITON_FLASH_ATTN", "PIECEWISE"),
        ("{image: 0, video: 0, audio: 0}", "FLASH_ATTN", "FULL_AND_PIECEWISE"),
        ("{audio: 0}", "TRITON_FLASH_ATTN", "PIECEWISE"),
    ],
)
def test_sound_alone_keeps_the_masks_of_a_12b(limits: str, backend: str, graphs: str, *, read: bool) -> None:
    found = resolved("spark-12b-mtp", "serve.kv_cache_dtype=bfloat16", f"serve.limit_mm_per_prompt={limits}", read=read)
    modes = known(found.graphs)
    assert modes
    assert (found.backend, modes.target) == (backend, graphs)


@pytest.mark.parametrize(
    ("name", "sets", "towers"),
    [
        ("spark-31b-mtp", (f"serve.limit_mm_per_prompt={SIGHT}",), set()),
        ("spark-e4b-mtp", (f"serve.limit_mm_per_prompt={SIGHT}",), {"audio"}),
        ("spark-e4b-mtp", ("serve.limit_mm_per_prompt={audio: 0}",), {"vision"}),
        ("spark-e4b-mtp", ("serve.language_model_only=true",), set()),
        ("spark-12b-mtp", ("serve.language_model_only=true",), {"vision", "audio"}),
    ],
)
def test_an_encoder_is_loaded_where_one_of_its_kinds_is_served(
    name: str, sets: tuple[str, ...], towers: set[str]
) -> None:
    assert resolved(name, *sets, read=True).towers == towers


def test_a_limit_counts_in_every_form_of_the_flag() -> None:
    plain = resolved(
        "spark-31b-mtp", 'serve.extra_args=[\'--limit-mm-per-prompt\', \'{"image": 0, "video": {"count": 0}}\']'
    )
    dotted = resolved(
        "spark-31b-mtp", "serve.extra_args=['--limit-mm-per-prompt.image', '0', '--limit-mm-per-prompt.video', '0']"
    )
    assert plain.media == dotted.media == frozenset()


def test_what_nobody_knows_is_not_taken_for_no() -> None:
    found = resolved("spark-31b-mtp", "target.model=someone/theirs", "serve.kv_cache_dtype=auto")
    for answer in (found.masks, found.media, found.cache):
        assert isinstance(answer, Unknown)
        assert "was not read" in answer.because
        with pytest.raises(TypeError, match="was not read"):
            bool(answer)


@pytest.mark.parametrize(
    ("words", "cache"),
    [((), None), (("--kv-cache-memory-bytes", "2700M"), 2_700 * 2**20), (("--kv-cache-memory-bytes=2k",), 2000)],
)
def test_a_gpu_gets_the_cache_that_its_flag_names(words: tuple[str, ...], cache: int | None) -> None:
    found = resolved("spark-31b-mtp", f"serve.extra_args={json.dumps(words)}").given_cache
    assert found == cache


def test_a_size_that_is_no_number_is_not_known() -> None:
    found = resolved("spark-31b-mtp", "serve.extra_args=[--kv-cache-memory-bytes, much]").given_cache
    assert isinstance(found, Unknown)
    assert "'much' is not a number of bytes" in found.because


def test_a_cpu_gets_the_cache_that_its_variable_names() -> None:
    assert (
        resolved_of(load_profile("tiny-cpu", overrides=("env.VLLM_CPU_KVCACHE_SPACE=2",)).profile).given_cache == 2**31
    )


def test_suffix_drafts_as_deep_as_its_trees() -> None:
    """vllm/config/speculative.py: num_speculative_tokens is suffix_decoding_max_tree_depth where it is not given."""
    alone = ("draft=", "speculative.method=suffix", "speculative.num_speculative_tokens=")
    assert resolved("spark-31b-mtp", *alone).tokens == 24
    assert resolved("spark-31b-mtp", *alone, "speculative.suffix_decoding_max_tree_depth=8").tokens == 8
    assert resolved("spark-31b-mtp", "draft=", "speculative=").tokens == 0
