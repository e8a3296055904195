"""Fifty and more checkpoints, one fault in each: `inspect` names it, and names none in those without a fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmaspec.cli.app import run
from tests.support.odd_checkpoints import (
    EXPERTS,
    INNER,
    WIDTH,
    WORDS,
    Change,
    Small,
    assistant,
    awq,
    below_moe,
    block,
    declared_as,
    declaring_besides,
    dense,
    eagle,
    fp8_blocks,
    fp8_channels,
    gptq,
    mixture,
    nvfp4,
    packed,
    per_layer,
    split,
    untied,
    with_shape,
    with_text,
    without,
)

WHOLE: dict[str, Small] = {
    "dense": dense(),
    "mixture": mixture(),
    "experts one by one": split(),
    "experts below moe": below_moe(split()),
    "embeddings for each layer": per_layer(),
    "assistant": assistant(),
    "assistant with centroids": assistant(ordered=True),
    "EAGLE-3": eagle(),
    "DSpark": block(),
    "untied": untied(WORDS)(dense()),
    "NVFP4": nvfp4(dense()),
    "NVFP4, experts": nvfp4(split()),
    "FP8 by channel": fp8_channels(dense()),
    "FP8 in blocks": fp8_blocks(dense()),
    "AWQ": awq(dense()),
    "AWQ, experts": awq(split()),
    "GPTQ": gptq(dense()),
    "GPTQ of 8 bits": gptq(dense(), bits=8),
    "GPTQ, one scale a row": gptq(dense(), group=-1),
    "compressed-tensors": packed(dense()),
}
"""Checkpoints that vLLM can load."""

ODD: dict[str, tuple[Small, Change, str]] = {
    "an expert missing": (split(), without("layers.3.experts.7."), "experts-differ"),
    "more experts stored than declared": (split(), with_text(num_experts=EXPERTS // 2), "experts-differ"),
    "more experts stored together": (mixture(), with_text(num_experts=EXPERTS // 2), "shapes-differ"),
    "fewer experts stored together": (mixture(), with_text(num_experts=2 * EXPERTS), "shapes-differ"),
    "a router missing": (mixture(), without("layers.3.router.proj"), "parts-missing"),
    "all routers missing": (mixture(), without("router."), "parts-missing"),
    "all experts missing": (mixture(), without(".experts."), "parts-missing"),
    "scales of the experts missing": (mixture(), without("per_expert_scale"), "parts-missing"),
    "norms of the experts missing": (mixture(), without("feedforward_layernorm_2"), "parts-missing"),
    "more experts for a token than there are": (mixture(), with_text(top_k_experts=200), "experts-per-token"),
    "no experts for a token": (mixture(), with_text(top_k_experts=0), "experts-per-token"),
    "a router for other experts": (mixture(), with_shape("router.proj.weight", 4, WIDTH), "shapes-differ"),
    "scales for other experts": (mixture(), with_shape("per_expert_scale", 4), "shapes-differ"),
    "experts of another width": (mixture(), with_text(moe_intermediate_size=128), "shapes-differ"),
    "one by one of another width": (split(), with_text(moe_intermediate_size=128), "shapes-differ"),
    "an output head of other rows": (dense(), untied(WORDS - 144), "shapes-differ"),
    "an output head missing": (dense(), untied(None), "parts-missing"),
    "embeddings of other rows": (dense(), with_shape("embed_tokens.weight", 1000, WIDTH), "shapes-differ"),
    "a vocabulary of another model": (dense(), with_text(vocab_size=2 * WORDS), "shapes-differ"),
    "norms of another head": (dense(), with_shape("k_norm.weight", 32), "shapes-differ"),
    "norms of another model": (dense(), with_shape("input_layernorm.weight", 128), "shapes-differ"),
    "a way down of another width": (dense(), with_shape("3.mlp.down_proj.weight", WIDTH, 128), "shapes-differ"),
    "values of other heads": (dense(), with_shape("3.self_attn.v_proj.weight", 64, WIDTH), "shapes-differ"),
    "values missing in every layer": (dense(), without("v_proj"), "parts-missing"),
    "norms of queries missing in every layer": (dense(), without("q_norm"), "parts-missing"),
    "one norm missing in every layer": (dense(), without("pre_feedforward_layernorm"), "parts-missing"),
    "the table for each layer missing": (per_layer(), without("embed_tokens_per_layer"), "parts-missing"),
    "its projection missing": (per_layer(), without("per_layer_model_projection"), "parts-missing"),
    "the gates to it missing": (per_layer(), without("per_layer_input_gate"), "parts-missing"),
    "a table for other layers": (per_layer(), with_shape("tokens_per_layer.weight", WORDS, 64), "shapes-differ"),
    "an assistant without its way in": (assistant(), without("pre_projection"), "parts-missing"),
    "an assistant without its way out": (assistant(), without("post_projection"), "parts-missing"),
    "an assistant without a table": (assistant(), without("embed_tokens"), "parts-missing"),
    "an assistant without centroids": (assistant(ordered=True), without("centroids"), "parts-missing"),
    "an assistant without its order": (assistant(ordered=True), without("token_ordering"), "parts-missing"),
    "an assistant of another vocabulary": (assistant(), with_text(vocab_size=2 * WORDS), "shapes-differ"),
    "a head of another vocabulary": (eagle(), with_shape("lm_head.weight", 16_000, 5376), "shapes-differ"),
    "a head without its map": (eagle(), without("d2t"), "vocabulary-map-missing"),
    "a map of another length": (eagle(), with_shape("d2t", 16_000), "shapes-differ"),
    "a head without its projection": (eagle(), without("fc."), "parts-missing"),
    "a projection of two layers": (eagle(), with_shape("fc.weight", 5376, 2 * 5376), "shapes-differ"),
    "a DSpark without its projection": (block(), without("fc."), "parts-missing"),
    "compressed-tensors declared as AWQ": (packed(dense()), declared_as(awq(dense())), "declared-not-stored"),
    "AWQ declared as compressed-tensors": (awq(dense()), declared_as(packed(dense())), "declared-not-stored"),
    "blocks without scales": (fp8_blocks(dense(), scales=False), without(), "scale-missing"),
    "one block without a scale": (fp8_blocks(dense()), without("3.mlp.up_proj.weight_scale_inv"), "scale-missing"),
    "channels without scales": (fp8_channels(dense()), without("weight_scale"), "scale-missing"),
    "AWQ without scales": (awq(dense()), without("2.mlp.up_proj.scales"), "scale-missing"),
    "packed without a scale": (packed(dense()), without("4.self_attn.o_proj.weight_scale"), "scale-missing"),
    "NVFP4 without the scale of a matrix": (nvfp4(dense()), without("weight_scale_2"), "nvfp4-scale-missing"),
    "blocks of 64 declared as 128": (fp8_blocks(dense(), side=64), without(), "group-size"),
    "groups of 32 declared as 128": (packed(dense(), declared=128), without(), "group-size"),
    "AWQ of 64 declared as 128": (awq(dense(), declared=128), without(), "group-size"),
    "GPTQ of 64 declared as 32": (gptq(dense(), declared=32), without(), "group-size"),
    "AWQ groups that do not divide experts": (awq(split(), group=128), without(), "groups-do-not-divide"),
    "GPTQ that is not symmetric": (gptq(dense()), declaring_besides(sym=False), "bits-unknown"),
    "GPTQ of three bits": (gptq(dense(), bits=3), without(), "bits-unknown"),
    "AWQ of eight bits": (awq(dense()), declaring_besides(bits=8), "bits-unknown"),
    "blocks that do not divide experts": (
        fp8_blocks(split(), method="compressed-tensors"),
        without(),
        "blocks-of-experts",
    ),
}
"""Checkpoints that vLLM cannot load or serves wrongly: the whole one, its fault, and the code of the finding."""


def looked_at(small: Small, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str]]:
    """Return the exit code of `inspect`, and what it found: code → severity."""
    code = run(["inspect", str(small.write(folder)), "--json"])
    findings = json.loads(capsys.readouterr().out)["target"]["findings"]
    return code, {one["code"]: one["severity"] for one in findings}


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_is_wrong_with_a_whole_one(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = looked_at(WHOLE[name], tmp_path / "model", capsys)
    assert (code, [one for one, severity in found.items() if severity == "error"]) == (0, [])


@pytest.mark.parametrize("name", ODD)
def test_an_odd_one_is_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small, change, wanted = ODD[name]
    code, found = looked_at(change(small), tmp_path / "model", capsys)
    assert code == 3
    assert found[wanted] == "error", found


def test_blocks_that_a_newer_vllm_cuts_smaller_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = looked_at(fp8_blocks(split()), tmp_path / "model", capsys)
    assert (code, found["blocks-of-experts"]) == (0, "warning")


def test_the_expected_shape_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = with_text(intermediate_size=2 * INNER)(dense())
    assert run(["inspect", str(small.write(tmp_path / "model"))]) == 3
    printed = " ".join(capsys.readouterr().out.split())
    assert f"has {WIDTH} x {INNER}, but {WIDTH} x {2 * INNER} is expected" in printed


def test_what_is_missing_in_a_folder_is_not_fetched_from_the_hub(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = without("q_norm")(dense())
    assert run(["inspect", str(small.write(tmp_path / "model"))]) == 3
    printed = capsys.readouterr().out
    assert "copy it again from where it came" in printed
    assert "hf download" not in printed
