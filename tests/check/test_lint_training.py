"""Rules about how a checkpoint was trained and in how few bits it is: names, releases and what is written."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gemmaspec.check.lint.check import check
from gemmaspec.check.use_cases.lint import stop_on_errors
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.checkpoint.published.shipped import checkpoint_of, draft_for, shipped
from gemmaspec.core.checkpoint.training import is_qat, trained_further
from gemmaspec.core.errors import ProfileError
from gemmaspec.core.finding import Finding
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.kept.lockfile import release_of
from gemmaspec.run.models.dummy import dummy_model
from tests.support.lint_cases import MOBILE, MTP, SOFT, TWO_BITS, UNIFIED

QAT = "google/gemma-4-31B-it-qat-w4a16-ct"
HEAD = "google/gemma-4-31B-it-qat-q4_0-unquantized-assistant"


def raised(code: str, *sets: str, release: str = "0.33.0", **models: Checkpoint) -> list[Finding]:
    loaded = load_profile("nvidia-31b-mtp", overrides=sets)
    return [one for one in check(loaded, patches={}, asked=release, **models) if one.code == code]


def test_a_qat_target_with_the_ordinary_head_is_told_the_published_acceptance_and_the_line() -> None:
    (found,) = raised("GS810", f"target.model={QAT}", "target.quantization=")
    assert "2.3 tokens a step" in found.message
    assert found.fix == f"draft: {{model: {HEAD}}}"


def test_an_ordinary_target_with_the_qat_head_too() -> None:
    (found,) = raised("GS810", f"draft.model={HEAD}")
    assert found.fix == "draft: {model: google/gemma-4-31B-it-assistant}"


@pytest.mark.parametrize(
    "target", [QAT, "google/gemma-4-31B-it-qat-q4_0-unquantized", "unsloth/gemma-4-31B-it-QAT-AWQ"]
)
def test_the_pair_that_belongs_together_is_silent(target: str) -> None:
    assert not raised("GS810", f"target.model={target}", "target.quantization=", f"draft.model={HEAD}")
    assert draft_for(target) == HEAD


@pytest.mark.parametrize(
    ("name", "is_one"), [("a/gemma-qat-x", True), ("a/b_QAT", True), ("qat/gemma", False), ("a/qatar-gemma", False)]
)
def test_the_word_is_in_the_model_s_own_name(name: str, is_one: bool) -> None:
    assert is_qat(name) is is_one


def test_a_card_s_base_tells_of_another_training_and_google_s_own_does_not() -> None:
    plain = checkpoint_of(shipped()["google/gemma-4-31b-it"])
    tuned = replace(plain, base_models=("owner/gemma-4-31B-it-heretic",))
    assert trained_further("owner/quantized", tuned) == "its card names owner/gemma-4-31B-it-heretic"
    assert trained_further("owner/quantized", replace(plain, base_models=("google/gemma-4-31B-it",))) is None


@pytest.mark.parametrize(
    ("release", "mobile", "two_bits"),
    [
        ("0.22.1", "error", "error"),
        ("0.23.0", "note", "error"),
        ("0.24.0", "note", "error"),
        ("0.25.0", "note", "note"),
        ("0.26.0", None, None),
        ("0.33.0", None, None),
    ],
)
def test_few_bits_need_their_release(release: str, mobile: str | None, two_bits: str | None) -> None:
    for checkpoint, severity in ((MOBILE, mobile), (TWO_BITS, two_bits)):
        found = raised("GS232", release=release, target=checkpoint)
        assert [one.severity for one in found] == ([severity] if severity else [])


def test_google_s_own_mobile_checkpoint_is_refused_by_a_release_that_cannot_load_it() -> None:
    mobile = checkpoint_of(shipped()["google/gemma-4-e2b-it-qat-mobile-ct"])
    (found,) = raised("GS232", release="0.22.1", target=mobile)
    assert (found.severity, found.fix) == ("error", "use vLLM 0.23.0 or later")


def test_w4a16_as_a_draft_model_has_the_trap_of_exact_names() -> None:
    small = checkpoint_of(shipped()["google/gemma-4-e2b-it-qat-w4a16-ct"])
    sets = ("draft.model=google/gemma-4-E2B-it-qat-w4a16-ct", "speculative.method=draft_model")
    (found,) = raised("GS233", *sets, draft=small)
    assert "draft_model." in found.message
    assert found.fix is not None
    assert found.fix.startswith("add draft-exact-names to patches.required")
    optional = "patches.optional=[draft-exact-names]"
    assert raised("GS233", *sets, optional, draft=small), "a start without it would fail later"
    assert not raised("GS233", *sets, "patches.required=[draft-exact-names]", draft=small)
    assert not raised("GS233", *MTP, target=small)


def test_a_12b_without_soft_tokens_is_mended_by_the_override_that_is_named() -> None:
    assert raised("GS234", target=UNIFIED)
    assert not raised("GS234", "serve.language_model_only=true", target=UNIFIED)
    override = json.dumps(["--hf-overrides", '{"vision_config": {"num_soft_tokens": 280}}'])
    assert not raised("GS234", f"serve.extra_args={override}", target=UNIFIED)


def test_google_s_own_12b_of_qat_lacks_them_as_people_reported_and_of_the_other_it_is_not_known() -> None:
    assert raised("GS234", target=checkpoint_of(shipped()["google/gemma-4-12b-it-qat-w4a16-ct"]))
    assert not raised("GS234", target=checkpoint_of(shipped()["google/gemma-4-12b-it"]))


def test_a_folder_of_a_12b_needs_its_release_whatever_it_is_called() -> None:
    assert raised("GS710", release="0.22.1", target=SOFT)
    assert not raised("GS710", release="0.23.0", target=SOFT)


def test_a_start_reads_checkpoints_in_folders(tmp_path: Path) -> None:
    """Exact names in a draft's ignore list stop `up`, and not vLLM minutes later."""
    folder = dummy_model("google/gemma-4-E2B-it-qat-w4a16-ct", None, into=tmp_path, note=lambda _: None)
    sets = ("machine=h100", f"draft.model={folder}", "speculative.method=draft_model")
    loaded = load_profile("nvidia-31b-mtp", overrides=sets)
    with pytest.raises(ProfileError, match="GS233"):
        stop_on_errors(loaded, lambda _: None, release=release_of(loaded))
    (folder / "config.json").write_text("{}")
    with contextlib.suppress(ProfileError):  # what cannot be read is reported elsewhere
        stop_on_errors(loaded, lambda _: None, release=release_of(loaded))
