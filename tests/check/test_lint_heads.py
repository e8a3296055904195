"""Which method runs is what vLLM makes of the draft, and all rules judge that one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemmaspec.check.lint.check import RULES, check
from gemmaspec.check.use_cases.lint import stop_on_errors
from gemmaspec.core import data
from gemmaspec.core.checkpoint.model import Speculator
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.kept.lockfile import release_of
from tests.support.lint_cases import BASE, BIG, SMALL

SHELF = Shelf((data.PATCHES,))
ASSISTANT = replace(SMALL, speculator=Speculator(method="mtp", target_hidden_size=5376))
EAGLE3 = replace(SMALL, speculator=Speculator(method="eagle3"))
DFLASH = replace(SMALL, speculator=Speculator(method="dflash"))


def errors(folder: Path, release: str, *sets: str, draft: object = None) -> dict[str, str]:
    file = folder / "mine.yaml"
    file.write_text(BASE)
    found = check(load_profile(str(file), overrides=sets), patches=SHELF, asked=release, target=BIG, draft=draft)  # type: ignore[arg-type]
    return {one.code: one.message for one in found if one.severity == "error"}


def _warnings(folder: Path, release: str, *sets: str) -> dict[str, str]:
    """What is only likely, since nobody has looked into the draft."""
    loaded = load_profile(str(folder / "mine.yaml"), overrides=sets)
    found = check(loaded, patches=SHELF, asked=release, target=BIG)
    return {one.code: one.message for one in found if one.severity == "warning"}


@pytest.mark.parametrize("release", ["0.21.0", "0.26.0", "0.33.0"])
def test_draft_model_with_an_assistant_is_mtp_and_no_error(release: str, tmp_path: Path) -> None:
    name = "draft.model=google/gemma-4-31B-it-assistant"
    found = errors(tmp_path, release, name, draft=ASSISTANT)
    assert not {"GS202", "GS301"} & set(found)
    assert "mtp-share-embeddings" in found.get("GS401", "") or "GS401" not in found


def test_before_0_21_there_is_no_model_for_it(tmp_path: Path) -> None:
    assert "GS202" in errors(tmp_path, "0.20.2", "draft.model=google/gemma-4-31B-it-assistant", draft=ASSISTANT)


def test_mtp_with_a_dflash_head_is_dflash(tmp_path: Path) -> None:
    sets = ("speculative.method=mtp", "draft.model=owner/gemma-4-31B-dflash")
    assert not {"GS201", "GS202"} & set(errors(tmp_path, "0.33.0", *sets, draft=DFLASH))


@pytest.mark.parametrize("method", ["mtp", "eagle3", "dflash", "eagle", "dspark"])
def test_a_plain_model_is_no_head(method: str, tmp_path: Path) -> None:
    assert "GS202" in errors(tmp_path, "0.33.0", f"speculative.method={method}", draft=SMALL)


@pytest.mark.parametrize(("method", "severity"), [("eagle", "warning"), ("dflash", "error")])
def test_an_eagle3_head_as_eagle_starts(method: str, severity: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(BASE)
    loaded = load_profile(str(file), overrides=(f"speculative.method={method}",))
    found = {one.code: one for one in check(loaded, patches=SHELF, asked="0.26.0", target=BIG, draft=EAGLE3)}
    assert found["GS202"].severity == severity


@pytest.mark.parametrize(("method", "release"), [("dflash", "0.26.0"), ("dspark", "0.33.0")])
@pytest.mark.parametrize("window", [1024, 2048])
def test_a_block_head_with_a_window_of_its_own_needs_the_patch(
    method: str, release: str, window: int, tmp_path: Path
) -> None:
    layers = tuple(replace(layer, window=window, kind="sliding", shares_with=None) for layer in BIG.text.layers[:5])
    head = replace(SMALL, text=replace(SMALL.text, layers=layers), speculator=Speculator(method=method))
    sets = (f"speculative.method={method}", "draft.model=owner/gemma-4-31B-it-speculator", "patches.required=[]")
    off = "serve.disable_hybrid_kv_cache_manager=true"
    found = errors(tmp_path, release, *sets, off, draft=head)
    assert ("kv-spec-uniform-valueerror" in found.get("GS401", "")) == (window == 2048)
    assert "GS401" not in errors(tmp_path, release, *sets, draft=head)
    unseen = _warnings(tmp_path, release, *sets, off)
    assert "kv-spec-uniform-valueerror" in unseen["GS401"]


def test_draft_parallelism_may_be_said_of_heads(tmp_path: Path) -> None:
    sets = ("speculative.method=mtp", "draft.model=google/gemma-4-31B-it-assistant")
    assert not errors(tmp_path, "0.33.0", *sets, "speculative.draft_tensor_parallel_size=1", draft=ASSISTANT)


@pytest.mark.parametrize("release", ["0.20.0", "0.21.0"])
def test_a_spark_s_default_batch_cannot_hold_a_video_before_0_22(release: str, tmp_path: Path) -> None:
    sees = replace(BIG, config={"text_config": {"use_bidirectional_attention": "vision"}})
    file = tmp_path / "mine.yaml"
    file.write_text(BASE)
    loaded = load_profile(str(file), overrides=("machine=dgx-spark",), no_spec=True)
    found = {one.code: one.message for one in check(loaded, patches=SHELF, asked=release, target=sees)}
    assert found["GS309"].startswith("comes to 2048, and one video of the target takes 2496")


def test_a_start_tells_no_warning_that_stands_in_a_shipped_profile(tmp_path: Path) -> None:
    told: list[str] = []
    shipped = load_profile("spark-31b-eagle3", folders=[data.PROFILES])
    stop_on_errors(shipped, told.append, release=release_of(shipped))
    assert told == []
    own = tmp_path / "mine.yaml"
    own.write_text(BASE.replace("v0.33.0", "latest"))
    told.clear()
    stop_on_errors(load_profile(str(own)), told.append, release=None)  # a moving tag names none
    assert any("GS702" in one for one in told)


def test_a_size_that_nobody_knows_is_not_called_right(tmp_path: Path) -> None:
    """Google has no 62B: neither the pair nor the size is passed over in silence."""
    (tmp_path / "mine.yaml").write_text(BASE)
    sets = (
        "target.model=google/gemma-4-62B-it",
        "draft.model=google/gemma-4-31B-it-assistant",
        "speculative.method=mtp",
    )
    loaded = load_profile(str(tmp_path / "mine.yaml"), overrides=sets)
    found = {one.code: one for one in check(loaded, patches=SHELF, asked="0.32.0")}
    assert "a head for 31B, but the target is 62B" in found["GS802"].message
    assert "62B, which is not a size of Gemma 4 known here" in found["GS809"].message
    assert found["GS809"].severity == "note"


@pytest.mark.parametrize(("release", "codes"), [("0.26.0", ["GS312"]), ("0.32.0", [])])
def test_one_fault_has_one_code_and_one_fix(release: str, codes: list[str], tmp_path: Path) -> None:
    """An FP8 cache with an MTP head on Hopper, and a parser that loses streamed arguments."""
    (tmp_path / "mine.yaml").write_text(BASE)
    sets = (
        "machine=h100",
        "serve.kv_cache_dtype=fp8",
        "draft.model=google/gemma-4-31B-it-assistant",
        "speculative.method=mtp",
    )
    loaded = load_profile(str(tmp_path / "mine.yaml"), overrides=sets)
    found = [one for one in check(loaded, patches=SHELF, asked=release) if "FlashInfer" in one.message]
    assert [one.code for one in found] == codes
    old = [one.code for one in check(loaded, patches=SHELF, asked="0.23.0") if "tool calls" in one.message]
    assert old == ["GS605"]


def test_no_two_rules_have_one_name() -> None:
    names = [one.check.__name__ for one in RULES]
    assert len(names) == len(set(names))
