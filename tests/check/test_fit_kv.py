"""KV cache planning: tables of known shapes, and what must hold for all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.check.fit.kvgroups import NOT_DIVISIBLE, TWO_BLOCKS, TWO_WINDOWS, KvCache, Unplannable, groups_of
from gemmaspec.check.fit.kvspec import kv_rules, layer_caches, sliding_block
from gemmaspec.core.checkpoint.model import Layer, TextModel
from tests.support.kv_shapes import cases, gemma, ours, owned, published, text_model

RELEASES = ("0.19.0", "0.20.1", "0.24.0", "0.25.0", "0.26.0", "0.27.0", "0.29.0", "0.30.0", "0.32.0", "0.33.0")


def planned(*names: str, vllm: str = "0.32.0", hybrid: bool = True, **more: Any) -> KvCache:
    """The cache of some published models together, on a GPU."""
    rules = kv_rules(vllm)
    found = []
    for role in names:
        settings = {"block_size": 16, "dtype": "bfloat16"} | more
        found += layer_caches(published(role), role=role, rules=rules, **settings)
    groups = groups_of(found, rules, hybrid=hybrid, joins_windows=True)
    return KvCache(groups=tuple(groups), rules=rules, in_flight=2048)


@pytest.mark.parametrize(
    ("names", "hybrid", "groups", "block_bytes", "block_sizes"),
    [
        # 50 sliding layers of 16 x 256 and 10 full ones of 4 x 512: a full page is half of a sliding one.
        (("31B",), True, 6, 10 * 2 * 2 * 16 * 16 * 256, [16, 16, 16, 16, 16, 32]),
        (("31B",), False, 1, 2 * 2 * 16 * (50 * 16 * 256 + 10 * 4 * 512), [16]),
        (("E2B",), True, 5, 3 * 2 * 2 * 16 * 512, [16, 32, 32, 32, 32]),
        (("E4B",), True, 6, 4 * 2 * 2 * 16 * 2 * 512, [16, 32, 32, 32, 32, 32]),
        (("31B", "E2B"), False, 1, 2 * 2 * 16 * (50 * 16 * 256 + 10 * 4 * 512 + 12 * 256 + 3 * 512), [16]),
    ],
)
def test_published_shapes(
    names: tuple[str, ...], hybrid: bool, groups: int, block_bytes: int, block_sizes: list[int]
) -> None:
    cache = planned(*names, hybrid=hybrid)
    assert len(cache.groups) == groups
    assert cache.block_bytes == block_bytes
    assert sorted(group.block_size for group in cache.groups) == block_sizes


def test_a_target_and_a_draft_come_into_26_groups_with_the_hybrid_manager() -> None:
    assert len(planned("31B", "E2B").groups) == 26
    assert len(planned("31B", "E4B").groups) == 22


def test_layers_that_share_a_cache_have_none() -> None:
    rules = kv_rules("0.32.0")
    assert len(list(layer_caches(published("E2B"), role="t", rules=rules, block_size=16, dtype="auto"))) == 15
    reading = text_model([Layer(kind="full", heads=1, kv_heads=1, head_dim=512, shares_target=True)])
    assert not list(layer_caches(reading, role="d", rules=rules, block_size=16, dtype="auto"))


@pytest.mark.parametrize(
    ("dtype", "token_bytes"),
    [("bfloat16", 2048), ("fp8", 1024), ("float32", 4096), ("fp8_per_token_head", 1032), ("nvfp4", 576)],
)
def test_a_number_format_changes_the_bytes_of_a_token(dtype: str, token_bytes: int) -> None:
    cache = planned("E2B", dtype=dtype)
    assert {layer.cache.token_bytes for group in cache.groups for layer in group.layers if layer.kind == "full"} == {
        token_bytes
    }


@pytest.mark.parametrize(
    ("vllm", "block_size", "expected"), [("0.24.0", 64, 64), ("0.25.0", 64, 16), ("0.30.0", 64, 64), ("0.30.0", 40, 32)]
)
def test_the_block_of_a_sliding_layer_by_release(vllm: str, block_size: int, expected: int) -> None:
    assert sliding_block(kv_rules(vllm), block_size) == expected


def test_what_ends_a_start_before_memory_is_looked_at() -> None:
    windows = owned(_case(draft=published("E2B")), "0.32.0")
    with pytest.raises(Unplannable, match=TWO_WINDOWS):
        groups_of(windows, kv_rules("0.32.0"), hybrid=False, joins_windows=False)
    assert len(groups_of(windows, kv_rules("0.32.0"), hybrid=False, joins_windows=True)) == 1
    with pytest.raises(Unplannable, match=TWO_BLOCKS):
        groups_of(owned(_case(block_size=64), "0.26.0"), kv_rules("0.26.0"), hybrid=False, joins_windows=False)
    odd = owned(_case(target=gemma(count=6, every=6, window=512, kv_heads=(3, 2))), "0.23.0")
    with pytest.raises(Unplannable, match=NOT_DIVISIBLE):
        groups_of(odd, kv_rules("0.23.0"), hybrid=True, joins_windows=False)
    padded = groups_of(odd, kv_rules("0.24.0"), hybrid=True, joins_windows=False)
    assert len({layer.cache.page_bytes for group in padded for layer in group.layers}) == 1


def _case(**values: Any) -> dict[str, Any]:
    common = {"target": published("31B"), "draft": None, "device": "gpu", "block_size": 16, "dtype": "auto"}
    return {**common, **values}


TINY_TARGET = gemma(count=6, every=6, window=1024, kv_heads=(2, 1))
TINY_DRAFT = gemma(count=10, every=5, window=512, kv_heads=(1, 1), shared=5)
ASSISTANT = text_model([Layer(kind="full", heads=4, kv_heads=1, head_dim=512, shares_target=True)])
EAGLE3 = text_model([Layer(kind="full", heads=4, kv_heads=2, head_dim=32)])


@pytest.mark.parametrize(
    ("draft", "hybrid", "blocks", "tokens", "concurrency"),
    [
        (TINY_DRAFT, False, 455, 58_240, "56.88"),
        (None, True, 4096, 79_137, "77.28"),
        (ASSISTANT, True, 4096, 79_137, "77.28"),
        (EAGLE3, True, 4096, 77_672, "75.85"),
    ],
    ids=["draft_model", "alone", "mtp", "eagle3"],
)
def test_what_0_32_0_logged_on_a_cpu(
    draft: TextModel | None, hybrid: bool, blocks: int, tokens: int, concurrency: str
) -> None:
    """The tiny target with each kind of draft: 1 GiB, blocks of 128, 1,024 tokens long, 1,024 in a batch."""
    rules = kv_rules("0.32.0", cpu=True)
    layers = [
        layer
        for role, model in (("target", TINY_TARGET), ("draft", draft))
        if model
        for layer in layer_caches(model, role=role, rules=rules, block_size=128, dtype="bfloat16")
    ]
    groups = groups_of(layers, rules, hybrid=hybrid, joins_windows=True)
    cache = KvCache(groups=tuple(groups), rules=rules, in_flight=1024)
    assert (cache.num_blocks(2**30), cache.logged_tokens(2**30, 1024)) == (blocks, tokens)
    assert f"{cache.concurrency(2**30, 1024):.2f}" == concurrency


@given(seed=st.integers(0, 10_000), vllm=st.sampled_from(RELEASES))
def test_more_tokens_never_need_less(seed: int, vllm: str) -> None:
    (case,) = cases(1, seed)
    cache = _cache(case, vllm)
    if cache is None:
        return
    lengths = [1, 15, 16, 17, 500, 4096, 100_000]
    needs = [cache.request_bytes(length) for length in lengths]
    assert needs == sorted(needs)
    assert cache.longest(case["available"], 131072) >= cache.longest(case["available"], 131072, 2)
    assert cache.longest(case["available"], 131072) <= cache.longest(2 * case["available"], 131072)


@given(seed=st.integers(0, 10_000), vllm=st.sampled_from(RELEASES))
def test_the_longest_starts_and_one_token_more_does_not(seed: int, vllm: str) -> None:
    (case,) = cases(1, seed)
    cache = _cache(case, vllm)
    if cache is None:
        return
    limit = 1_000_000
    longest = cache.longest(case["available"], limit)
    assert longest == 0 or cache.starts_with(case["available"], longest)
    assert longest == limit or not cache.starts_with(case["available"], longest + 1)


@given(seed=st.integers(0, 10_000), vllm=st.sampled_from(RELEASES))
def test_fp8_never_needs_more_than_sixteen_bits(seed: int, vllm: str) -> None:
    (case,) = cases(1, seed)
    wide, narrow = _cache({**case, "dtype": "auto"}, vllm), _cache({**case, "dtype": "fp8"}, vllm)
    if wide and narrow:
        assert narrow.block_bytes * 2 == wide.block_bytes
        assert narrow.request_bytes(4096) * 2 == wide.request_bytes(4096)


@given(seed=st.integers(0, 10_000), vllm=st.sampled_from(RELEASES))
def test_every_layer_is_in_one_group_and_pages_are_equal_across_groups(seed: int, vllm: str) -> None:
    (case,) = cases(1, seed)
    cache = _cache(case, vllm)
    if cache is None:
        return
    names = [layer.name for group in cache.groups for layer in group.layers]
    assert sorted(names) == sorted(layer.name for layer in owned(case, vllm))
    if len(cache.groups) > 1:
        assert len({layer.cache.page_bytes for group in cache.groups for layer in group.layers}) == 1


def _cache(case: dict[str, Any], vllm: str) -> KvCache | None:
    rules = kv_rules(vllm, cpu=case["device"] == "cpu")
    try:
        groups = groups_of(owned(case, vllm), rules, hybrid=case["hybrid"], joins_windows=case["joins_windows"])
    except Unplannable:
        return None
    return KvCache(groups=tuple(groups), rules=rules, in_flight=case["max_num_batched_tokens"])


def test_the_logged_size_was_once_counted_by_group() -> None:
    case = {**cases(1, 3)[0], "target": published("31B"), "draft": None, "hybrid": True, "available": 2**34}
    case |= {"device": "gpu", "block_size": 16, "max_model_len": 8192}
    before, after = ours(case, "0.20.0"), ours(case, "0.20.1")
    assert before["num_blocks"] == after["num_blocks"]
    assert before["tokens"] == before["num_blocks"] // 6 * 16 != after["tokens"]


def test_the_longest_request_is_checked_without_the_block_that_is_never_handed_out() -> None:
    cache = planned("E2B")
    exactly = cache.request_bytes(4096)
    assert not cache.starts_with(exactly, 4096)
    assert cache.starts_with(exactly + cache.block_bytes, 4096)
    assert replace(cache, rules=kv_rules("0.28.0")).starts_with(exactly, 4096)
