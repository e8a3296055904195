"""`gemmaspec/check/lint`: every rule on a profile that breaks it and on one that does not, and how findings are told."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmaspec.check.lint.check import ABOUT_THE_RELEASE, CODES, RULES, check
from gemmaspec.check.lint.rule import as_text
from gemmaspec.core import data
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.errors import ProfileError
from gemmaspec.core.finding import Finding
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.command import command_of, resolve, vllm_of
from gemmaspec.core.profile.find import profile_names
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.releases.facts import facts_for, releases
from gemmaspec.run.stack.paths import container_paths
from gemmaspec.run.stack.serve import serve_command
from tests.support.lint_cases import (
    AWQ,
    BASE,
    BATCH,
    BIG,
    BOTH,
    CASES,
    DFLASH,
    EAGLE3,
    FP8_CACHE,
    LOOKS_BOTH_WAYS,
    MIXTURE,
    MTP,
    NGRAM,
    OFF,
    SMALL,
    SPARK_MIXTURE,
    SUFFIX,
    TEXT_ONLY,
    TRITON,
    Case,
    case,
    checkpoint,
    extra,
)
from tests.support.speed_patches import write_speed_patch

FOLDER = tempfile.TemporaryDirectory()
write_speed_patch(Path(FOLDER.name))
(write_speed_patch(Path(FOLDER.name), "broken") / "evidence.json").write_text("{")
SOUND = Shelf((data.PATCHES,))
"""The shipped patches."""
SHELF = Shelf((data.PATCHES, Path(FOLDER.name)))
"""Beside them one for speed that was measured with mtp under 0.32 on an H200 with TRITON_ATTN, and an invalid one."""


def loaded(folder: Path, *sets: str, own: str = "") -> Loaded:
    file = folder / "mine.yaml"
    file.write_text(BASE if not own else f"extends: _base\nname: mine\n{own}")
    (folder / "_base.yaml").write_text(BASE)
    return load_profile(str(file), overrides=sets)


def findings(folder: Path, one: Case) -> dict[str, Finding]:
    profile = loaded(folder, *one.sets, own=one.own)
    found = check(
        profile,
        patches=SHELF,
        asked=one.release or vllm_of(profile.profile),
        target=one.target,
        draft=one.draft,
        here=one.here,
    )
    return {finding.code: finding for finding in found}


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_what_it_is_for(rule: str, tmp_path: Path) -> None:
    code, found = rule.split()[0], findings(tmp_path, CASES[rule][0])
    assert code in found
    assert found[code].message
    assert found[code].fix
    assert found[code].place


def test_a_removed_flag_is_not_taken_for_its_opposite(tmp_path: Path) -> None:
    """The flag next to it in letters would log what people ask."""
    found = findings(tmp_path, case("0.32.0", extra("--disable-log-requests")))["GS101"]
    assert found.fix == "remove it: it is so unless --enable-log-requests is given"
    assert findings(tmp_path, case("0.32.0", extra("--enable-log-requets")))["GS101"].fix == (
        "did you mean --enable-log-requests?"
    )


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_is_silent_where_nothing_is_wrong(rule: str, tmp_path: Path) -> None:
    assert rule.split()[0] not in findings(tmp_path, CASES[rule][1])


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["patches.optional=[faster]"], "faster is a patch for speed, on which no start may depend"),
        (["patches.speed=[draft-text-only]"], "draft-text-only corrects a defect"),
        (["patches.speed=[fasta]"], "unknown patch fasta"),
        (["patches.speed=[broken]"], "the patch broken is invalid: "),
    ],
)
def test_patches_for_speed_and_of_defects_have_lists_of_their_own(
    sets: list[str], message: str, tmp_path: Path
) -> None:
    assert message in findings(tmp_path, case("0.33.0", *sets))["GS404"].message


@pytest.mark.parametrize(
    ("release", "sets", "lacks"),
    [
        ("0.31.0", (*MTP, TRITON), ": not measured with vLLM 0.31.0"),
        ("0.32.0", (*MTP, TRITON, "machine=dgx-spark"), ": not measured with GPUs of the family gb10"),
        ("0.32.0", MTP, ": not measured with the attention backend TRITON_FLASH_ATTN"),
        ("0.32.0", (*MTP, TEXT_ONLY), ": not measured with the attention backend FLASH_ATTN"),
        ("0.32.0", (TRITON,), ": not measured with the method draft_model"),
        ("0.32.0", ("machine=nvidia", *MTP), "the family of the GPU is not known"),
    ],
)
def test_a_speed_patch_that_is_named_without_evidence(
    release: str, sets: tuple[str, ...], lacks: str, tmp_path: Path
) -> None:
    found = findings(tmp_path, case(release, "patches.speed=[faster]", *sets))
    assert lacks in found["GS406"].message


def test_long_prompts_are_fine_with_the_patch_that_splits_the_cache(tmp_path: Path) -> None:
    slow = ("serve.max_model_len=8192", *MTP, TRITON)
    said = findings(tmp_path, case("0.32.0", "patches.speed=off", *slow))["GS506"]
    assert said.fix
    assert "list triton-verify-split-kv under patches.speed" in said.fix
    for machine in ("h200", "nvidia", "dgx-spark"):
        for taken in ("auto", "[triton-verify-split-kv]"):
            sets = (f"machine={machine}", f"patches.speed={taken}", *slow)
            assert "GS506" not in findings(tmp_path, case("0.32.0", *sets))


def test_every_rule_has_its_two_profiles() -> None:
    assert set(CASES) == {f"{one.code} {one.check.__name__.lstrip('_')}" for one in (*RULES, *ABOUT_THE_RELEASE)}


def documented() -> dict[str, str]:
    """Code → severity, as codes.md has them."""
    return dict(
        re.findall(r"^### (GS\d{3}): .*\n\n\*\*(error|warning|note)\*\*", data.LINT_CODES.read_text(), re.MULTILINE)
    )


def test_every_code_is_documented_with_its_severity_and_no_other() -> None:
    assert documented() == {code: rule.severity for code, rule in CODES.items()}


def test_the_documentation_is_in_order() -> None:
    assert list(documented()) == sorted(documented())


@pytest.mark.parametrize("name", profile_names([data.PROFILES]))
def test_a_shipped_profile_has_no_errors(name: str) -> None:
    shipped = load_profile(name, folders=[data.PROFILES])
    found = check(shipped, patches=SHELF, asked=vllm_of(shipped.profile))
    assert [as_text(one) for one in found if one.severity == "error"] == []


@pytest.fixture(scope="module")
def every_case(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Case, Loaded]]:
    """The profiles of all cases, each loaded once."""
    folder = tmp_path_factory.mktemp("cases")
    return [(one, loaded(folder, *one.sets)) for cases in CASES.values() for one in cases]


@pytest.mark.parametrize("release", releases())
def test_every_rule_can_be_asked_about_every_release(release: str, every_case: list[tuple[Case, Loaded]]) -> None:
    """The first and the last are asked about every case, and those between about every third, in turn."""
    known = releases()
    asked = every_case if release in (known[0], known[-1]) else every_case[known.index(release) % 3 :: 3]
    for one, profile in asked:
        check(profile, patches=SOUND, asked=release, target=one.target, draft=one.draft)


def test_a_finding_names_file_line_key_and_documentation(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(BASE.replace("4096}", "4096, linear_backend: x}"))
    (found,) = [one for one in check(load_profile(str(file)), patches=SHELF, asked="0.33.0") if one.code == "GS102"]
    assert as_text(found).startswith(f"{file}:9: error GS102: serve.linear_backend: vLLM 0.33.0 does not take 'x'")
    assert as_text(found).endswith("[gemmaspec explain GS102]")


def test_a_value_of_the_command_line_is_blamed_there(tmp_path: Path) -> None:
    found = findings(tmp_path, case("0.21.0", "serve.linear_backend=marlin"))["GS101"]
    assert str(found.place) == "--set serve.linear_backend"


def test_what_only_some_releases_refuse_is_no_error_when_the_release_is_a_guess(tmp_path: Path) -> None:
    nightly = "image=vllm/vllm-openai:cu130-nightly"
    only_newest = findings(tmp_path, case(None, nightly, extra("--calculate-kv-scales")))["GS101"]
    assert only_newest.severity == "warning"
    nowhere = findings(tmp_path, case(None, nightly, extra("--no-such-flag")))["GS101"]
    assert nowhere.severity == "error"


def test_for_is_no_guess(tmp_path: Path) -> None:
    nightly = "image=vllm/vllm-openai:cu130-nightly"
    found = findings(tmp_path, case("0.33.0", nightly, extra("--calculate-kv-scales")))
    assert found["GS101"].severity == "error"
    assert "GS701" not in found


def test_without_notes_there_are_none(tmp_path: Path) -> None:
    profile = loaded(tmp_path, "image=vllm/vllm-openai:nightly", "chat.template=")
    severities = {one.severity for one in check(profile, patches=SHELF, asked=None, notes=False)}
    assert severities == {"warning"}


def test_a_release_before_gemma_4_is_the_one_thing_told(tmp_path: Path) -> None:
    assert set(findings(tmp_path, case("0.18.1", extra("--no-such-flag")))) == {"GS703"}


def missing(folder: Path, one: Case) -> dict[str, str]:
    """The patches that are missing, and how bad that is."""
    profile = loaded(folder, *one.sets)
    asked = one.release or vllm_of(profile.profile)
    found = check(profile, patches=SHELF, asked=asked, target=one.target, draft=one.draft)
    return {finding.message.split()[2]: finding.severity for finding in found if finding.code == "GS401"}


def test_two_models_with_one_window_need_no_patch_for_two(tmp_path: Path) -> None:
    one = case("0.33.0", OFF, target=checkpoint("small"), draft=SMALL)
    assert missing(tmp_path, one) == {"kv-sharing-uniform-specs": "error"}


def test_models_without_shared_layers_need_no_patch_for_them(tmp_path: Path) -> None:
    assert missing(tmp_path, case("0.33.0", OFF, target=BIG, draft=BIG)) == {}


def test_models_of_unknown_shape_are_only_suspected(tmp_path: Path) -> None:
    one = case("0.33.0", OFF, "target.model=/models/target", "draft.model=/models/draft")
    assert set(missing(tmp_path, one).values()) == {"warning"}


@pytest.mark.parametrize(
    ("one", "patch", "severity"),
    [
        (case("0.33.0", OFF, "patches.required=[kv-spec-uniform-valueerror]"), "kv-sharing-uniform-specs", "error"),
        (case("0.33.0", OFF, "patches.required=[kv-sharing-uniform-specs]"), "kv-spec-uniform-valueerror", "error"),
        (case("0.30.0", OFF, BOTH), "draft-text-only", "warning"),
        (case("0.30.0", OFF, BOTH, target=BIG, draft=SMALL), "draft-text-only", "error"),
        (case("0.19.1"), "draft-several-kv-groups", "error"),
        (case("0.19.0", "speculative.method=eagle3", "draft.model=o/eagle3"), "eagle3-gemma4-target", "error"),
        (case("0.26.0", *MTP, "target.model=google/gemma-4-26B-A4B-it"), "mtp-share-embeddings", "error"),
        *(
            (
                case(release, *MTP, "target.model=google/gemma-4-26B-A4B-it", extra("--enable-expert-parallel")),
                "mtp-dense-draft-parallel",
                "error",
            )
            for release in ("0.31.0", "0.32.0", "0.33.0")
        ),
        (case("0.19.0", "draft=", "speculative="), "thought-channel-nonstreaming", "warning"),
        (case("0.33.0", "draft=", "speculative=", target=AWQ), "nvfp4-awq", "error"),
        (case("0.20.0", "machine=cpu"), "cpu-expand-sampling", "warning"),
        (case("0.33.0", "machine=cpu", *MTP), "cpu-top-k-no-rows", "warning"),
        (
            case("0.33.0", "draft=", "speculative=", OFF, "target.model=google/gemma-4-E4B-it"),
            "kv-sharing-uniform-specs",
            "error",
        ),
    ],
)
def test_a_missing_patch_is_named(one: Case, patch: str, severity: str, tmp_path: Path) -> None:
    assert missing(tmp_path, one)[patch] == severity


@pytest.mark.parametrize(
    "one",
    [
        case("0.30.0", OFF, BOTH, TEXT_ONLY),
        case("0.30.0", OFF, BOTH, "serve.limit_mm_per_prompt={image: 0, video: 0, audio: 0}"),
        case("0.30.0", OFF, BOTH, target=checkpoint(text_only=True), draft=SMALL),
        case("0.33.0"),
        case("0.26.0", *MTP),
        case("0.27.0", *MTP, "target.model=google/gemma-4-26B-A4B-it"),
        case("0.33.0", *NGRAM, OFF),
    ],
)
def test_a_patch_that_is_not_needed_is_not_missed(one: Case, tmp_path: Path) -> None:
    assert "GS401" not in findings(tmp_path, one)


@pytest.mark.parametrize(
    ("sets", "target", "severity"),
    [
        ((BATCH,), LOOKS_BOTH_WAYS, "error"),
        ((BATCH,), None, "warning"),
        ((BATCH,), BIG, None),
        ((BATCH, "target.model=google/gemma-4-E4B-it"), None, None),
        ((BATCH, extra("--disable-chunked-mm-input")), BIG, "error"),
        (("serve.max_num_batched_tokens=2495",), LOOKS_BOTH_WAYS, "error"),
        (("serve.max_num_batched_tokens=2496",), LOOKS_BOTH_WAYS, None),
        (("serve.max_num_seqs=1", "serve.max_model_len=2048"), LOOKS_BOTH_WAYS, "error"),
        (("serve.max_num_seqs=2", "serve.max_model_len=2048"), LOOKS_BOTH_WAYS, None),
        ((BATCH, "serve.limit_mm_per_prompt={video: 0}"), LOOKS_BOTH_WAYS, None),
        (("serve.max_num_batched_tokens=279", "serve.limit_mm_per_prompt={video: 0}"), LOOKS_BOTH_WAYS, "error"),
        ((BATCH, TEXT_ONLY), LOOKS_BOTH_WAYS, None),
        ((BATCH, "serve.limit_mm_per_prompt={image: 0, video: 0, audio: 0}"), LOOKS_BOTH_WAYS, None),
        ((BATCH,), checkpoint(text_only=True, text_config={"use_bidirectional_attention": "vision"}), None),
        ((BATCH, "machine=cpu"), LOOKS_BOTH_WAYS, None),
    ],
)
def test_a_batch_must_hold_a_whole_video(
    sets: tuple[str, ...], target: Checkpoint | None, severity: str | None, tmp_path: Path
) -> None:
    found = findings(tmp_path, case("0.33.0", *sets, target=target)).get("GS309")
    assert (found.severity if found else None) == severity


def test_without_a_gpu_model_runner_v1_runs_in_every_release(tmp_path: Path) -> None:
    assert "GS301" in findings(tmp_path, case("0.33.0", "machine=cpu"))
    assert "GS301" not in findings(tmp_path, case("0.33.0", "machine=cpu", OFF, BOTH))


def test_on_fast_memory_a_drafter_without_graphs_is_a_warning(tmp_path: Path) -> None:
    assert findings(tmp_path, case("0.25.1"))["GS501"].severity == "warning"
    assert findings(tmp_path, case("0.25.1", "machine=dgx-spark"))["GS501"].severity == "note"
    assert "GS501" not in findings(tmp_path, case("0.26.0"))


FULL = (
    "serve.served_model_name=gemma",
    "serve.enable_prefix_caching=false",
    "serve.limit_mm_per_prompt={image: 1}",
    "target.revision=main",
    "target.quantization=modelopt",
    "chat.content_format=openai",
    "chat.template_kwargs.enable_thinking=true",
    extra("--max-logprobs", "5", "--no-enable-log-requests", "-tp=1"),
)


def test_the_rules_see_the_command_line_that_is_rendered(tmp_path: Path) -> None:
    facts = facts_for("0.33.0")
    assert facts
    profile = loaded(tmp_path, *FULL).profile
    rendered = [word.partition("=")[0] for word in serve_command(profile, container_paths(profile))]
    flags = {resolve(word, facts.flags)[0] for word in rendered if word.startswith("-")}
    seen = {one.flag for one in command_of(profile, facts.flags).arguments}
    assert seen == flags - {"--host", "--port", "--enable-auto-tool-choice", "--disable-access-log-for-endpoints"}


@pytest.mark.parametrize(
    ("written", "flag", "negated"),
    [
        ("--max_model_len", "--max-model-len", False),
        ("-tp", "--tensor-parallel-size", False),
        ("--no-enable-prefix-caching", "--enable-prefix-caching", True),
        ("--attention-config.flash_attn_version", "--attention-config", False),
        ("--max-logpr", "--max-logprobs", False),
        ("--max", "--max", False),
        ("--no-max-model-len", "--no-max-model-len", False),
    ],
)
def test_a_flag_is_known_however_it_is_written(written: str, flag: str, negated: bool) -> None:
    facts = facts_for("0.33.0")
    assert facts
    assert resolve(written, facts.flags) == (flag, negated)


WORDS = st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=0x24F, exclude_characters="\x7f"), min_size=1)
FLAGS = st.sampled_from(
    ["--pipeline-parallel-size", "-pp=", "--max-model-len", "--no-", "--", "-", "-O", "--a.b.c=", "-sp"]
)


@given(words=st.lists(st.one_of(WORDS, FLAGS), max_size=6), release=st.sampled_from(releases()))
@settings(max_examples=150, deadline=None)
def test_no_argument_breaks_a_rule(words: list[str], release: str) -> None:
    base = load_profile("spark-31b-e2b", folders=[data.PROFILES])
    serve = base.profile.serve.model_copy(update={"extra_args": words})
    env = {"VLLM_USE_V2_MODEL_RUNNER": words[0] if words else ""}
    profile = base.profile.model_copy(update={"serve": serve, "env": env})
    assert check(replace(base, profile=profile), patches=SHELF, asked=release)


@pytest.mark.parametrize("words", [("-O3",), ("-O=3",), ("--seed", "-1"), ("--enable-log-requests",)])
def test_a_flag_that_vllm_takes_is_not_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    found = findings(tmp_path, case("0.33.0", extra(*(f"'{word}'" for word in words))))
    assert not set(found) & {"GS101", "GS102"}


@pytest.mark.parametrize(
    ("sets", "code"),
    [
        ((*SUFFIX, "speculative.rejection_sample_method=fly"), "GS210"),
        (
            (
                *SUFFIX,
                "speculative.rejection_sample_method=synthetic",
                "speculative.synthetic_acceptance_length=3",
            ),
            "GS208",
        ),
        (("serve.max_num_seqs=1", "serve.max_model_len=1024", extra("--max-num-batched-tokens", "4k")), "GS309"),
        (("serve.max_num_seqs=1", "serve.max_model_len=1024", extra("--max-num-batched-tokens", "2.5k")), "GS309"),
        (
            (
                "serve.max_num_batched_tokens=256",
                "serve.limit_mm_per_prompt={image: 1, video: 0}",
                extra("--mm-processor-kwargs", "'{\"max_soft_tokens\": 70}'"),
            ),
            "GS309",
        ),
    ],
)
def test_what_would_have_run_is_no_error(sets: tuple[str, ...], code: str, tmp_path: Path) -> None:
    assert code not in findings(tmp_path, case("0.33.0", *sets, target=LOOKS_BOTH_WAYS, draft=SMALL))


@pytest.mark.parametrize("written", ["2047", "1K", "2k", "2.4k"])
def test_a_batch_below_one_video_however_it_is_written(written: str, tmp_path: Path) -> None:
    one = case("0.33.0", extra(f"--max-num-batched-tokens={written}"), target=LOOKS_BOTH_WAYS, draft=SMALL)
    assert "GS309" in findings(tmp_path, one)


def test_a_method_that_does_not_work_is_told_once_with_what_a_profile_can_name(tmp_path: Path) -> None:
    found = findings(tmp_path, case("0.19.1", "speculative.method=dspark"))
    assert "GS102" not in found
    assert found["GS203"].fix == "use another vLLM release, or one of draft_model, eagle3, ngram, suffix"


EXPERTS = extra("--enable-return-routed-experts")


@pytest.mark.parametrize(
    ("release", "sets", "message"),
    [
        ("0.33.0", (extra("--enable-fault-tolerance"),), "requires --data-parallel-external-lb"),
        ("0.33.0", (extra("--enable-fault-tolerance", "--data-parallel-external-lb", "--data-parallel-rank=0"),), None),
        ("0.33.0", (EXPERTS, "serve.enable_prefix_caching=false"), "requires prefix caching"),
        ("0.33.0", (EXPERTS, "env.VLLM_USE_V2_MODEL_RUNNER=0"), "requires model runner v2, and vLLM 0.33.0 uses v1"),
        ("0.33.0", (EXPERTS,), None),
        ("0.30.0", (EXPERTS, "serve.enable_prefix_caching=false"), None),
        ("0.33.0", (extra("--enable-dbo"), "speculative.method=dspark"), "do not work with dspark"),
        ("0.33.0", (extra("--enable-dbo"),), "two micro-batches require"),
        ("0.26.0", (extra("--ubatch-size=2"),), "two micro-batches require"),
        ("0.33.0", (extra("--enable-dbo", "--all2all-backend=nixl_ep"),), None),
        ("0.33.0", (extra("--kda-prefill-backend=fused"),), "for ROCm alone"),
        ("0.33.0", (extra("--kda-prefill-backend=auto"),), None),
    ],
)
def test_a_flag_with_a_condition_is_refused_where_that_is_not_met(
    release: str, sets: tuple[str, ...], message: str | None, tmp_path: Path
) -> None:
    found = findings(tmp_path, case(release, *sets, target=MIXTURE)).get("GS112")
    assert message in found.message if found and message else found is message


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("GS501", ("--enforce-eager",)),
        ("GS603", ("--reasoning-parser", "qwen3")),
        ("GS307", ("--attention-backend", "FLASH_ATTN")),
    ],
)
def test_a_finding_points_to_the_argument_that_is_to_blame(code: str, words: tuple[str, ...], tmp_path: Path) -> None:
    one = case("0.33.0", "machine=dgx-spark", "chat.reasoning_parser=", extra(*words))
    assert findings(tmp_path, one)[code].key == "serve.extra_args.0"


@pytest.mark.parametrize(("machine", "refused"), [("b200", True), ("h200", False), ("dgx-spark", True)])
def test_flash_attention_has_wide_heads_on_hopper_alone(machine: str, *, refused: bool, tmp_path: Path) -> None:
    found = findings(tmp_path, case("0.33.0", "serve.attention_backend=FLASH_ATTN", f"machine={machine}"))
    assert ("GS307" in found) == refused


@pytest.mark.parametrize(("method", "told"), [(MTP, True), (DFLASH, False)])
def test_tokens_of_a_block_head_cost_no_passes_of_their_own(
    method: tuple[str, ...], *, told: bool, tmp_path: Path
) -> None:
    more = ("speculative.num_speculative_tokens=7", "serve.max_num_seqs=8")
    assert ("GS505" in findings(tmp_path, case("0.33.0", *method, *SPARK_MIXTURE, *more))) == told
    dense = ("machine=dgx-spark", *more)
    assert "GS505" not in findings(tmp_path, case("0.33.0", *method, *dense))


def test_what_else_takes_unified_memory_and_what_else_drafts_too_much(tmp_path: Path) -> None:
    loads = case("0.33.0", "serve.load_format=fastsafetensors", "machine=dgx-spark")
    assert findings(tmp_path, loads)["GS504"].key == "serve.load_format"
    assert "GS504" not in findings(tmp_path, case("0.33.0", "serve.load_format=fastsafetensors"))
    fast = case("0.33.0", "speculative.num_speculative_tokens=4")
    assert "1.06 times" in findings(tmp_path, fast)["GS505"].message


def test_a_draft_of_unknown_layers_is_not_refused_for_its_groups(tmp_path: Path) -> None:
    assert findings(tmp_path, case("0.30.0"))["GS301"].severity == "error"
    assert findings(tmp_path, case("0.30.0", "draft.model=owner/other"))["GS301"].severity == "warning"
    seen = case("0.30.0", "draft.model=owner/other", target=BIG, draft=SMALL)
    assert findings(tmp_path, seen)["GS301"].severity == "error"


@pytest.mark.parametrize(("dtype", "found"), [("auto", True), ("", True), ("bfloat16", False)])
def test_auto_is_the_cache_that_the_checkpoint_declares(dtype: str, found: bool, tmp_path: Path) -> None:
    one = case("0.30.0", *MTP, f"serve.kv_cache_dtype={dtype}", target=FP8_CACHE)
    assert ("GS303" in findings(tmp_path, one)) is found


def test_a_folder_further_up_does_not_tell_the_size_of_a_model(tmp_path: Path) -> None:
    alone = ("draft=", "speculative=", OFF)
    assert "GS401" not in findings(tmp_path, case("0.33.0", *alone, "target.model=/data/e2b/gemma-4-31b"))
    assert (
        findings(tmp_path, case("0.33.0", *alone, "target.model=/data/31b/gemma-4-e2b/"))["GS401"].severity == "error"
    )


def test_which_vllm_runs_is_said_where_the_profile_says_it(tmp_path: Path) -> None:
    image, process = case(None, "image=vllm/vllm-openai:v0.18.0"), case(None, "runtime.vllm=0.18.0")
    assert findings(tmp_path, image)["GS703"].key == "image"
    assert findings(tmp_path, process)["GS703"].key == "runtime.vllm"
    nowhere = findings(tmp_path, case(None, "image=", "runtime.python=/opt/vllm/bin/python"))["GS701"]
    assert (nowhere.key, "runtime.vllm" in nowhere.fix, "image" in nowhere.fix) == ("runtime.vllm", True, False)


@pytest.mark.parametrize("written", ["--no-enable-prefix", "--no_enable_prefix_caching"])
def test_the_beginning_of_a_no_form_is_understood(written: str) -> None:
    facts = facts_for("0.33.0")
    assert facts
    assert resolve(written, facts.flags) == ("--enable-prefix-caching", True)


def test_several_machines_have_as_many_gpus(tmp_path: Path) -> None:
    two = case("0.33.0", "machine=dgx-spark", "nodes=2")
    assert "GS225" not in findings(tmp_path, two)
    four = case("0.33.0", "machine=dgx-spark", "nodes=2", "serve.tensor_parallel_size=4")
    assert findings(tmp_path, four)["GS225"].message == "needs 4 GPUs, and 2 machines of kind dgx-spark have 2"


def test_heads_of_keys_and_values_are_divided_or_copied(tmp_path: Path) -> None:
    layers = tuple(replace(layer, heads=12, kv_heads=8) for layer in BIG.text.layers)
    odd = replace(BIG, text=replace(BIG.text, layers=layers))
    found = findings(tmp_path, case("0.33.0", "serve.tensor_parallel_size=6", target=odd))
    assert "8 key and value heads" in found["GS221"].message
    assert "GS221" not in findings(tmp_path, case("0.33.0", "serve.tensor_parallel_size=4", target=odd))


TWO_STAGES = "serve.pipeline_parallel_size=2"


@pytest.mark.parametrize(
    ("release", "sets", "said"),
    [
        ("0.29.0", MTP, "the MTP head cannot be split"),
        ("0.33.0", MTP, "embeddings, and vLLM gives them to it only without stages"),
        ("0.25.0", EAGLE3, "eagle3 reads hidden states of layers of several stages"),
        ("0.33.0", EAGLE3, "eagle3 reads hidden states of layers of several stages"),
        ("0.33.0", DFLASH, "dflash reads hidden states"),
        ("0.33.0", (), "the draft's layers are cut by the target's stages"),
        ("0.33.0", NGRAM, None),
        ("0.32.0", NGRAM, None),
        ("0.31.0", NGRAM, "under model runner v1 ngram is on the last stage alone"),
        ("0.33.0", SUFFIX, "under model runner v1 suffix is on the last stage alone"),
        ("0.33.0", (*NGRAM, "target.model=google/gemma-4-E4B-it"), "an E2B or E4B is not served in stages"),
    ],
)
def test_what_vllm_cannot_serve_in_stages_is_refused(
    release: str, sets: tuple[str, ...], said: str | None, tmp_path: Path
) -> None:
    found = findings(tmp_path, case(release, *sets, TWO_STAGES)).get("GS218")
    if said is None:
        assert found is None
    else:
        assert found
        assert (found.severity, said in found.message) == ("error", True)


def test_a_draft_is_cut_into_stages_whether_or_not_its_layers_share_a_cache(tmp_path: Path) -> None:
    stages = case("0.32.0", TWO_STAGES, draft=BIG)
    for draft in (BIG, SMALL):
        assert "--no-spec" in findings(tmp_path, replace(stages, draft=draft))["GS218"].fix


def test_instead_of_three_stages_as_many_gpus_as_divide_the_heads_are_named(tmp_path: Path) -> None:
    three = case("0.33.0", *MTP, "serve.pipeline_parallel_size=3", target=BIG)
    assert BIG.text.layers[0].heads % 3
    assert "serve.tensor_parallel_size=2," in findings(tmp_path, three)["GS218"].fix


def test_an_fp8_cache_on_two_machines_is_an_error_where_it_was_seen_to_fail(tmp_path: Path) -> None:
    sets = ("nodes=2", "serve.kv_cache_dtype=fp8")
    said = [findings(tmp_path, case(one, *sets)).get("GS317") for one in ("0.19.1", "0.20.0", "0.33.0")]
    assert [one.severity if one else None for one in said] == ["error", None, None]
    assert "GS317" in findings(tmp_path, case("0.19.1", "nodes=2", target=FP8_CACHE))
    assert "GS317" not in findings(tmp_path, case("0.19.1", "nodes=2", target=BIG))
    assert "GS317" not in findings(tmp_path, case("0.19.1", "serve.tensor_parallel_size=2", sets[1]))


SPARK_BLOCK = ("machine=dgx-spark", "speculative.method=dflash", "speculative.attention_backend=FLASH_ATTN")


@pytest.mark.parametrize(
    ("release", "sets", "said"),
    [
        ("0.33.0", ("machine=a100", "serve.kv_cache_dtype=fp8"), "not supported by the Triton attention backend"),
        ("0.23.0", ("machine=a100", "serve.kv_cache_dtype=fp8"), None),
        ("0.33.0", ("machine=h100", "serve.kv_cache_dtype=fp8"), None),
        ("0.33.0", (*SPARK_BLOCK, "serve.kv_cache_dtype=fp8"), "FlashAttention reads no FP8 KV cache on compute"),
        ("0.32.0", (*SPARK_BLOCK, "speculative.kv_cache_dtype=fp8"), "FlashAttention reads no FP8 KV cache on compute"),
        ("0.33.0", (*SPARK_BLOCK, "serve.kv_cache_dtype=fp8", "speculative.kv_cache_dtype=bfloat16"), None),
        ("0.33.0", (*SPARK_BLOCK, "machine=h100", "serve.kv_cache_dtype=fp8"), None),
        ("0.33.0", ("serve.kv_cache_dtype=nvfp4",), "takes a KV cache of nvfp4"),
        ("0.33.0", ("serve.kv_cache_dtype=int4_per_token_head",), None),
        ("0.33.0", ("serve.kv_cache_dtype=float16", "serve.dtype=bfloat16"), "is incompatible with dtype"),
        ("0.32.0", ("serve.kv_cache_dtype=float16", "serve.dtype=bfloat16"), None),
    ],
)
def test_a_cache_that_no_backend_takes_is_refused(
    release: str, sets: tuple[str, ...], said: str | None, tmp_path: Path
) -> None:
    found = findings(tmp_path, case(release, *sets, target=LOOKS_BOTH_WAYS)).get("GS307")
    assert said in found.message if found and said else said is None and found is None


@pytest.mark.parametrize(
    ("release", "code", "wrong", "right"),
    [
        ("0.33.0", "GS102", "--mm-processor-device=4GB", "--mm-processor-device=cpu"),
        ("0.33.0", "GS102", '--reasoning-config={"reasoning_parser": "NONE"}', '--reasoning-config={"reasoning_parser": "gemma4"}'),
        ("0.26.0", "GS102", '--reasoning-config={"reasoning_start_str": "1"}', "--reasoning-config.reasoning_parser=gemma4"),
        ("0.26.0", "GS102", "--reasoning-config={}", "--reasoning-config="),
        ("0.33.0", "GS102", "--reasoning-config.reasoning_parser=x", '--reasoning-config={"reasoning_start_str": "1"}'),
        ("0.33.0", "GS102", "--attention-backend=NONE_SUCH", "--attention-backend=None"),
        ("0.33.0", "GS112", "--data-parallel-external-lb", "--no-data-parallel-external-lb"),
        ("0.33.0", "GS102", '--kernel-config.moe_backend="full"', '--kernel-config={"moe_backend": "Marlin"}'),
        ("0.33.0", "GS102", "--show-hidden-metrics-for-version={bad", "--show-hidden-metrics-for-version=0.7"),
        ("0.26.0", "GS102", '--profiler-config={"capture_torch_profiler": true}', "--profiler-config.profiler=cuda"),
        ("0.33.0", "GS102", '--profiler-config={"proton_profiler_dir": "1"}', "--profiler-config.max_iterations=1"),
    ],
)  # fmt: skip
def test_what_releases_refused_and_took_when_they_were_asked(
    release: str, code: str, wrong: str, right: str, tmp_path: Path
) -> None:
    sets = [
        (extra(json.dumps(word)), "chat.reasoning_parser=", "target.model=google/gemma-4-26B-A4B-it")
        for word in (wrong, right)
    ]
    found = [code in findings(tmp_path, case(release, *one)) for one in sets]
    assert found == [True, False]


@pytest.mark.parametrize(
    ("code", "said", "sets"),
    [
        ("GS802", "another family", ("target.model=Qwen/Qwen3-32B", "draft.model=google/gemma-4-E2B-it")),
        *(
            ("GS802", "another family", (*MTP, f"target.model={target}"))
            for target in (
                "Qwen/Qwen3-32B",
                "google/gemma-3-27b-it",
                "google/gemma-2-9b-it",
                "google/gemma-3n-E4B-it",
                "meta-llama/Llama-3.3-70B-Instruct",
                "/models/Mistral-Small-3.2",
            )
        ),
        ("GS902", "GGUF", ("target.model=unsloth/gemma-4-31B-it-GGUF",)),
        ("GS902", "GGUF", (*MTP, "draft.model=unsloth/gemma-4-31B-it-assistant.gguf.Q4")),
        ("GS702", "starts vLLM", ("image=lmsysorg/sglang:latest",)),
        ("GS702", "starts vLLM", ("image=ghcr.io/huggingface/text-generation-inference:3.3",)),
    ],
)
def test_what_is_no_gemma_4_of_vllm_is_an_error(code: str, said: str, sets: tuple[str, ...], tmp_path: Path) -> None:
    found = findings(tmp_path, case("0.33.0", *sets))[code]
    assert said in found.message or said in found.message.upper()
    assert found.severity == "error"


@pytest.mark.parametrize(
    "target", ["owner/spark-gemma-4-31B-it", "owner/deckard-31B", "nvidia/Gemma-4-31B-IT-NVFP4", "owner/gemma4-31b-glm"]
)
def test_a_target_that_may_be_gemma_4_is_taken_for_one(target: str, tmp_path: Path) -> None:
    found = findings(tmp_path, case("0.33.0", *MTP, f"target.model={target}"))
    assert "another family" not in (found["GS802"].message if "GS802" in found else "")


def _words(*words: str) -> str:
    return f"serve.extra_args={json.dumps(words)}"


def _transfer(**keys: object) -> str:
    return _words(f"--{next(iter(keys))[:2]}-transfer-config", json.dumps(keys))


def _limit(**limits: object) -> str:
    return _words("--limit-mm-per-prompt", json.dumps(limits))


LORA = ("serve.max_num_seqs=1024", "serve.max_num_batched_tokens=8192")


@pytest.mark.parametrize(
    ("vllm", "sets", "code", "said"),
    [
        ("0.33.0", (_transfer(kv_connector="Nope", kv_role="kv_both"),), "GS112", "has no KV connector 'Nope'"),
        ("0.33.0", (_transfer(kv_connector="P2pNcclConnector", kv_role="kv_both"),), "GS112", "up to 0.23.0"),
        ("0.33.0", (_transfer(kv_connector="NixlConnector"),), "GS112", "kv_role is None"),
        ("0.33.0", (_transfer(kv_connector="NixlConnector", kv_role="all"),), "GS112", "kv_role is 'all'"),
        ("0.33.0", (_transfer(kv_role="kv_both"),), "GS112", "Connector name is not set"),
        ("0.33.0", (_transfer(kv_connector="NixlConnector", kv_role="kv_both"),), "GS112", None),
        ("0.23.0", (_transfer(kv_connector="P2pNcclConnector", kv_role="kv_both"),), "GS112", None),
        ("0.33.0", (_transfer(ec_connector="Nope", ec_role="ec_both"),), "GS112", "has no EC connector 'Nope'"),
        ("0.25.1", (_transfer(ec_connector="ECCPUConnector", ec_role="ec_both"),), "GS112", "from 0.26.0 on"),
        ("0.26.0", (_transfer(ec_connector="ECCPUConnector", ec_role="ec_both"),), "GS112", None),
        ("0.33.0", (_transfer(ec_connector="ECCPUConnector"),), "GS112", "ec_role is None"),
        ("0.33.0", (_transfer(ec_role="ec_both"),), "GS112", "not set in ECTransferConfig"),
        (
            "0.33.0",
            (_transfer(kv_connector="Own", kv_role="kv_both", kv_connector_module_path="own.module"),),
            "GS112",
            None,
        ),
        ("0.26.0", (_words("--max-num-partial-prefills", "2"),), "GS112", "Concurrent Partial Prefill"),
        ("0.26.0", (_words("--max-num-partial-prefills", "1"),), "GS112", None),
        ("0.26.0", (_words("--renderer-num-workers", "2"),), "GS112", "--renderer-num-workers > 1"),
        ("0.33.0", (_words("--renderer-num-workers", "2"),), "GS112", None),
        ("0.33.0", (_words("--enable-dbo"),), "GS112", "two micro-batches require"),
        ("0.32.0", (*MTP, "target.model=nvidia/Gemma-4-26B-A4B-NVFP4"), "GS801", None),
        ("0.32.0", (*MTP, "target.model=google/gemma-4-26B-A4B"), "GS801", "looks like the base"),
        ("0.33.0", (_words("--enable-dbo"), "machine=cpu"), "GS112", None),
        ("0.33.0", ("env.VLLM_DP_SIZE='2'",), "GS219", "not supported/useful for dense models"),
        ("0.33.0", ("env.VLLM_DP_SIZE='1'",), "GS219", None),
        ("0.33.0", (_words("-cc.cudagraph_capture_sizes=[]"),), "GS102", "at least one size"),
        ("0.33.0", (_words("--max-cudagraph-capture-size", "0"),), "GS102", "at least one size"),
        ("0.33.0", (_words("-cc.cudagraph_capture_sizes=[]"), "serve.enforce_eager=true"), "GS102", None),
        ("0.33.0", (_words("-cc.cudagraph_capture_sizes=[5, 10]"),), "GS102", None),
        ("0.33.0", (_words("--quantization-config", '{"x": 1}'),), "GS102", "no key x"),
        ("0.32.0", (_limit(image=-1),), "GS102", "must be at least 0"),
        ("0.32.0", (_limit(image={"count": -1}),), "GS102", "must be at least 0"),
        ("0.32.0", (_limit(image={"size": 512}),), "GS102", "has no key 'size'"),
        ("0.32.0", (_limit(video={"num_frames": 0}),), "GS102", "must be more than 0"),
        ("0.32.0", (_limit(image=None),), "GS102", "for --limit-mm-per-prompt image"),
        ("0.32.0", (_limit(image="2"),), "GS102", "image: takes a whole number without quotes"),
        ("0.32.0", (_limit(image=2.0),), "GS102", "image: takes a whole number without quotes"),
        ("0.32.0", (_limit(image={"count": "2", "width": 512, "height": 512}, video=True),), "GS102", None),
        ("0.32.0", (_limit(x={"width": 1}),), "GS102", None),
        ("0.32.0", (_words("-cc.dynamic_shapes_config.type=BACKED"),), "GS102", "takes backed, unbacked"),
        ("0.32.0", (_words("-cc.dynamic_shapes_config.type=unbacked"),), "GS102", None),
        ("0.33.0", (_words("--quantization-config", '{"linear": "mxfp8"}'),), "GS102", None),
        ("0.33.0", (_words("--distributed-executor-backend", "nccl"),), "GS102", "no executor 'nccl'"),
        ("0.33.0", (_words("--distributed-executor-backend", "own.module.Executor"),), "GS102", None),
        ("0.33.0", (_words("--profiler-config", '{"profiler": "torch"}'),), "GS102", "needs torch_profiler_dir"),
        ("0.33.0", (_words("--"),), "GS101", "'--' belongs to no flag"),
        ("0.33.0", ("env.CMAKE_BUILD_TYPE=fast",), "GS102", "does not take 'fast'"),
        (
            "0.33.0",
            (*MTP, *LORA, _words("--enable-lora"), "speculative.num_speculative_tokens=8"),
            "GS309",
            "need a batch of 9,216",
        ),
        (
            "0.33.0",
            (*MTP, *LORA, _words("--enable-lora"), "serve.max_num_seqs=910", "speculative.num_speculative_tokens=8"),
            "GS309",
            None,
        ),
        ("0.33.0", (*MTP, *LORA, "speculative.num_speculative_tokens=8"), "GS309", None),
        ("0.33.0", ("machine=a100", "serve.attention_backend=TRITON_FLASH_ATTN"), "GS307", "it is for 9.x alone"),
        ("0.33.0", ("machine=b200", "serve.attention_backend=TRITON_FLASH_ATTN"), "GS307", "it is for 9.x alone"),
        ("0.33.0", ("machine=h200", "serve.attention_backend=TRITON_FLASHINFER"), "GS307", "it is for 10.x alone"),
        ("0.33.0", ("machine=h200", "serve.attention_backend=TRITON_FLASH_ATTN"), "GS307", None),
        ("0.33.0", ("machine=b200", "serve.attention_backend=TRITON_FLASHINFER"), "GS307", None),
        ("0.28.0", (*MTP, "machine=b200"), "GS312", "the head takes FlashInfer"),
    ],
)
def test_what_vllm_refused_when_it_was_asked_and_what_it_took(
    vllm: str, sets: tuple[str, ...], code: str, said: str | None, tmp_path: Path
) -> None:
    found = findings(tmp_path, case(vllm, *sets))
    assert code not in found if said is None else said in found[code].message


@pytest.mark.parametrize(
    ("flag", "fix"),
    [("--ctx-size", "the right name is serve.max_model_len"), ("-ngl", "so leave it out"), ("--gwm", "remove it")],
)
def test_a_flag_of_another_server_is_answered_by_the_key(flag: str, fix: str, tmp_path: Path) -> None:
    assert fix in str(findings(tmp_path, case("0.33.0", _words(flag, "4096")))["GS101"].fix)


@pytest.mark.parametrize(
    ("vllm", "sets", "told"),
    [("0.28.0", (), False), ("0.28.0", ("env.VLLM_USE_V2_MODEL_RUNNER='1'",), True), ("0.29.0", (), True)],
)
def test_the_head_of_a_mixture_keeps_the_backend_of_its_target_under_runner_v1(
    vllm: str, sets: tuple[str, ...], *, told: bool, tmp_path: Path
) -> None:
    found = findings(tmp_path, case(vllm, *MTP, *sets, "machine=b200", "target.model=google/gemma-4-26B-A4B-it"))
    assert ("GS312" in found) == told


@pytest.mark.parametrize("rule", sorted(CASES))
def test_another_family_gets_no_advice_of_gemma_4(rule: str, tmp_path: Path) -> None:
    """Each case with a Qwen and its own head in the place of the models: what is said names none of Gemma's parts."""
    for one in CASES[rule]:
        kept = [text for text in one.sets if not text.startswith(("target", "draft"))]
        models = ["target={model: Qwen/Qwen3-32B}", "chat={}"]
        if "speculative=" not in one.sets:
            models.append("draft={model: RedHatAI/Qwen3-32B-speculator}")
        try:
            found = findings(tmp_path, replace(one, sets=(*models, *kept), target=None, draft=None))
        except ProfileError:
            continue  # a profile of the draft's own sizes, which needs the draft that was taken out
        assert "GS703" in found or "GS809" in found
        for finding in found.values():
            if finding.code not in ("GS406", "GS703", "GS809"):  # a measured patch, the first release, and this itself
                assert "Gemma 4" not in finding.message, finding
                assert "parser: gemma4" not in finding.fix, finding
                assert "31B" not in finding.message, finding


def test_a_folder_and_a_gemma_that_names_another_model_are_still_gemma(tmp_path: Path) -> None:
    for name in ("/models/served", "me/gemma-4-31B-it-qwen-distill"):
        assert "GS601" in findings(tmp_path, case("0.33.0", f"target.model={name}", "chat.reasoning_parser="))


@pytest.mark.parametrize(
    ("tag", "severity", "first"),
    [
        ("gemma4-0505-arm64-cu130", "error", "0.21.0"),
        ("gemma", "warning", "0.21.0"),
        ("gemma4-unified", "warning", "0.23.0"),
    ],
)
def test_a_snapshot_of_a_branch_is_named_with_the_first_release(
    tag: str, severity: str, first: str, tmp_path: Path
) -> None:
    found = findings(tmp_path, case(None, *MTP, f"image=vllm/vllm-openai:{tag}"))["GS702"]
    assert found.severity == severity
    assert first in found.message
    assert "GS702" not in findings(tmp_path, case(None, *MTP, f"image=me/vllm:{tag}"))
