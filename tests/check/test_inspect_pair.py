"""Which drafts go with which targets, and what each mismatch is said to cause."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from gemmaspec.check.inspect import meaning
from gemmaspec.check.inspect.examine import kind_of
from gemmaspec.check.inspect.pair import KnownPair, Pairing, pair, step_bytes
from gemmaspec.core import strict_yaml
from gemmaspec.core.checkpoint.model import Checkpoint, TextModel
from gemmaspec.core.finding import SEVERITIES, Finding
from tests.support import shapes
from tests.support.checkpoints import assistant, checkpoint, gemma, head


def codes(pairing: Pairing) -> dict[str, Finding]:
    return {finding.code: finding for finding in pairing.findings}


def text(one: Checkpoint, **changes: Any) -> Checkpoint:
    changed: TextModel = dataclasses.replace(one.text, **changes)
    return dataclasses.replace(one, text=changed)


def test_the_31b_and_its_e2b_pair_with_three_patches() -> None:
    pairing = pair(gemma("31B", packed=True), gemma("E2B", packed=True))
    assert pairing.works
    assert pairing.method == "draft_model"
    assert pairing.patches == ("kv-spec-uniform-valueerror", "kv-sharing-uniform-specs", "draft-text-only")
    found = codes(pairing)
    assert "1024 in the target, 512 in the draft" in found["sliding-windows"].message
    assert (
        "All attention layers in the same KV cache group must have the same window size"
        in found["sliding-windows"].impact
    )
    assert "20 of the draft's layers" in found["kv-sharing"].message
    assert found["kv-groups"].fix == "serve.disable_hybrid_kv_cache_manager: true"
    assert found["cost"].message.endswith("7%")
    assert found["tokenizer"].message == "both have the same tokenizer.json"


def test_a_text_only_target_needs_no_patch_for_images() -> None:
    config = shapes.config("31B")
    target = checkpoint({**config["text_config"], "architectures": ["Gemma4ForCausalLM"]}, shapes.tensors(config))
    assert "draft-text-only" not in pair(target, gemma("E2B")).patches


def test_the_assistant_of_the_same_size_pairs() -> None:
    pairing = pair(gemma("31B"), assistant("31B"))
    assert pairing.works
    assert (pairing.method, pairing.patches) == ("mtp", ())
    assert "from vLLM 0.21.0 on" in codes(pairing)["releases"].message


def test_what_a_head_shares_is_said() -> None:
    says = codes(pair(gemma("31B"), assistant("31B")))["shares"].message
    assert "uses the target's KV cache and input embeddings" in says
    assert "and its own output head" in says
    says = codes(pair(gemma("31B"), head()))["shares"].message
    assert "uses the target's input embeddings" in says
    assert "and its own KV cache and output head" in says


def test_the_assistant_of_another_size_does_not() -> None:
    pairing = pair(gemma("E2B"), assistant("31B"))
    assert not pairing.works
    found = codes(pairing)
    assert "mat1 and mat2 shapes cannot be multiplied" in found["hidden-size"].impact
    assert "expect 16 KV heads of 256, window 1024" in found["shared-cache"].message


def test_an_assistant_beside_a_mixture_of_experts_needs_its_embeddings() -> None:
    assert pair(gemma("26B-A4B"), assistant("26B-A4B")).patches == ("mtp-share-embeddings",)


def test_an_assistant_reads_a_scaled_cache_without_its_scales() -> None:
    config = shapes.config("31B")
    scaled = checkpoint(config, shapes.nvfp4(shapes.tensors(config), kv_scales=True), separate=shapes.modelopt())
    assert codes(pair(scaled, assistant("31B")))["mtp-kv-scales"].severity == "warning"


def test_an_eagle3_head_pairs_with_its_size_only() -> None:
    pairing = pair(gemma("31B"), head())
    assert pairing.works
    assert (pairing.method, pairing.patches) == ("eagle3", ())
    assert "eagle3-groups" in codes(pairing)
    other = pair(gemma("E4B"), head())
    assert not other.works
    assert {"hidden-size", "target-layers"} <= set(codes(other))


def test_the_target_that_a_head_names() -> None:
    assert "verifier" in codes(pair(gemma("31B"), head()))
    assert "verifier" not in codes(pair(gemma("31B", ref="RedHatAI/gemma-4-31B-it-NVFP4"), head()))


def test_vocabularies_of_different_size_are_refused_as_vllm_does() -> None:
    pairing = pair(gemma("31B"), text(gemma("E2B"), vocab_size=256_000))
    assert not pairing.works
    finding = codes(pairing)["vocabulary-size"]
    assert "Target model vocab_size=262144. Draft model vocab_size=256000." in finding.impact
    assert "use_heterogeneous_vocab" in finding.fix
    assert not pair(gemma("31B"), text(head(), vocab_size=128_256)).works


@pytest.mark.parametrize(
    ("digest", "words", "code", "severity"),
    [
        ("b", None, "tokenizer-unknown", "note"),
        ("b", (262_144, 262_144), "tokenizer", "note"),
        ("b", (262_000, 262_144), "tokenizer-differs", "warning"),
        ("b", (1000, 262_144), "tokenizer-differs", "error"),
        ("a" * 64, None, "tokenizer", "note"),
    ],
)
def test_tokenizers(digest: str, words: tuple[int, int] | None, code: str, severity: str) -> None:
    pairing = pair(gemma("31B", tokenizer_digest=digest), gemma("E2B"), words=words)
    assert codes(pairing)[code].severity == severity
    assert pairing.works is (severity != "error")


def test_nothing_is_said_of_tokenizers_that_are_not_there() -> None:
    found = codes(pair(gemma("31B", tokenizer_digest=None), gemma("E2B", special_tokens={})))
    assert not {code for code in found if code.startswith(("tokenizer", "special"))}


def test_control_tokens_with_other_numbers_forbid_a_pair() -> None:
    moved = {**shapes.SPECIAL, "<|turn>": 98, "<|think|>": 105}
    pairing = pair(gemma("31B"), gemma("E2B", special_tokens=moved))
    assert not pairing.works
    assert (
        "2 control tokens have different ids; '<|think|>' is 98 in the target and 105"
        in codes(pairing)["special-tokens"].message
    )


def test_control_tokens_that_one_does_not_have_are_noted() -> None:
    fewer = {token: number for token, number in shapes.SPECIAL.items() if token != "<|tool>"}
    assert codes(pair(gemma("31B"), gemma("E2B", special_tokens=fewer)))["special-tokens-unshared"].severity == "note"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"base_models": ("google/gemma-4-E2B",)}, "base"),
        ({"base_models": ("google/gemma-4-E2B-it",), "ref": "some/base"}, "instruct"),
        ({"base_models": ("somebody/else",), "ref": "x/y", "has_chat_template": False}, "base"),
        ({"ref": "bg-digitalservices/Gemma-4-E2B-NVFP4A16", "has_chat_template": False}, "base"),
        ({"ref": "mikeytag/gemma-4-E2B-it-NVFP4", "has_chat_template": None}, "instruct"),
        ({"ref": "/models/gemma-4-31B-it/"}, "instruct"),
        ({"ref": "some/kitten", "has_chat_template": True}, "instruct"),
        ({"ref": "some/kitten", "has_chat_template": None}, None),
    ],
)
def test_base_or_instruct(changes: dict[str, Any], kind: str | None) -> None:
    assert kind_of(gemma("E2B", **changes))[0] == kind


def test_a_base_draft_for_an_instruct_target_is_warned_of() -> None:
    base = gemma("E2B", ref="bg-digitalservices/Gemma-4-E2B-NVFP4A16", has_chat_template=False)
    pairing = pair(gemma("31B"), base)
    assert pairing.works
    finding = codes(pairing)["base-and-instruct"]
    assert finding.severity == "warning"
    assert "25 tokens/s, against 41" in finding.impact
    assert "base-and-instruct" not in codes(pair(gemma("31B"), gemma("E2B")))


def test_a_draft_that_costs_more_than_its_target_is_warned_of() -> None:
    assert codes(pair(gemma("E2B"), gemma("31B")))["draft-larger"].severity == "warning"


def test_of_the_experts_only_those_that_a_token_asks_for_are_read() -> None:
    moe = gemma("26B-A4B")
    experts = sum(tensor.nbytes for tensor in moe.tensors if ".experts." in tensor.name)
    layers = sum(tensor.nbytes for tensor in moe.tensors if ".layers." in tensor.name and "vision" not in tensor.name)
    assert step_bytes(moe) == layers - experts + experts * 8 // 128


def test_the_shorter_context_is_told() -> None:
    assert (
        "131072 tokens of context, the target for 262144" in codes(pair(gemma("31B"), gemma("E2B")))["context"].message
    )


@pytest.mark.parametrize(
    ("method", "draft"), [("draft_model", head()), ("eagle3", gemma("E2B")), ("mtp", gemma("E2B"))]
)
def test_a_method_that_the_draft_is_not_made_for(method: str, draft: Checkpoint) -> None:
    pairing = pair(gemma("31B"), draft, method=method)
    assert not pairing.works
    assert codes(pairing)["method"].fix.startswith("speculative.method: ")


def test_a_draft_cannot_be_a_target() -> None:
    assert "target-is-draft" in codes(pair(assistant("31B"), gemma("E2B")))


@pytest.mark.parametrize(
    ("ref", "severity"),
    [
        ("some/eagle-e2b", "error"),
        ("some/E2B-dflash", "error"),
        ("/models/EAGLE3/e2b", "warning"),
        ("state:dspark", "warning"),
    ],
)
def test_a_path_that_vllm_takes_for_a_method(ref: str, severity: str) -> None:
    pairing = pair(gemma("31B"), gemma("E2B", ref=ref))
    assert codes(pairing)["path-decides"].severity == severity
    assert pairing.works is (severity == "warning")


def test_known_pairs() -> None:
    known = KnownPair(target="a/target-it", draft="b/draft-it", method="draft_model", profile="p", source="s.txt")
    draft = gemma("E2B", ref="b/draft-it")
    same = pair(gemma("31B", ref="a/target-it"), draft, known=(known,))
    assert same.known == known
    assert "profile p, published in s.txt" in codes(same)["known-pair"].message
    assert "other-target" in codes(pair(gemma("31B"), draft, known=(known,)))
    assert not {"known-pair", "other-target"} & set(codes(pair(gemma("31B"), gemma("E2B"), known=(known,))))


def test_every_patch_that_a_finding_names_is_shipped() -> None:
    from gemmaspec.core import data

    pairs = [(gemma("31B"), gemma("E2B")), (gemma("26B-A4B"), assistant("26B-A4B")), (gemma("31B"), head())]
    named = {patch for one in pairs for finding in pair(*one).findings for patch in finding.patches}
    assert len(named) == 5
    assert all((data.PATCHES / patch / "patch.yaml").is_file() for patch in named)
    bare = [
        finding.code
        for one in pairs
        for finding in pair(*one).findings
        if finding.severity == "patch" and not finding.patches
    ]
    assert bare == [], "a finding that a patch fixes names it"


def test_each_code_has_one_row_that_says_what_it_means() -> None:
    folder = meaning.TABLE.parent
    texts = "".join(file.read_text() for file in folder.glob("*.py"))
    said = set(re.findall(r"finding\(\s*f?\"([a-z0-9-]+)\"", texts.replace("{part}", "vision")))
    rows = strict_yaml.table(meaning.TABLE)
    assert said | {"audio-tower-missing"} == set(rows)
    assert {row.get("severity", "error") for row in rows.values()} <= set(SEVERITIES)
