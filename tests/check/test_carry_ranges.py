"""Rebases whose range or whose function has to be found: no gap is left, and a renamed function is offered."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gemmaspec.check.carry import rebase_state
from gemmaspec.check.carry.rebase import Rebased, RebaseRequest, rebase
from gemmaspec.check.carry.verify import VerifyRequest, verify
from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.errors import PatchConflict
from gemmaspec.core.patching.patch import load_patch
from tests.support.carrying import CLEAN, DIFF, OLD, TEXT, cache, snapshot, use_releases, write_patch  # noqa: F401

ID = "right-value"
SCOPES = "scopes: {vllm/v1/core.py: [value]}}"
RENAMED = OLD.replace("def value(", "def worth(")


@pytest.fixture
def patch(tmp_path: Path) -> Path:
    return write_patch(tmp_path / "patches")


def carry(patch: Path, to: str, **more: str) -> Rebased:
    return rebase(RebaseRequest(patch=ID, to=to, folders=(patch.parent,), **more))  # type: ignore[arg-type]


def states(patch: Path) -> dict[str, str]:
    """The state on each release."""
    found = verify(VerifyRequest(folders=(patch.parent,), all_releases=True, patches=(ID,)))
    return {cell.vllm: cell.verdict.state for cell in found.cells}


def claim(patch: Path, *ranges: str) -> None:
    """Give the patch these ranges, each with the diff for OLD."""
    rows = "".join(f'  - {{diff: {n}.diff, versions: "{one}", {SCOPES}\n' for n, one in enumerate(ranges))
    (patch / "0.19.diff").unlink()
    for n, _ in enumerate(ranges):
        (patch / f"{n}.diff").write_text(DIFF)
    (patch / "patch.yaml").write_text(TEXT.replace(f'  - {{diff: 0.19.diff, versions: ">=0.19.0", {SCOPES}\n', rows))


def test_a_rebase_to_a_middle_release_takes_the_whole_gap(
    patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    claim(patch, ">=0.19.0,<0.20", ">=0.21")
    use_releases(
        monkeypatch, tmp_path, v0_19_0=OLD, v0_20_0=CLEAN, v0_20_1=CLEAN, v0_20_2=CLEAN, v0_20_3=CLEAN, v0_21_0=OLD
    )
    assert carry(patch, "0.20.2").versions == ">=0.20.0,<0.21"
    assert [one.versions for one in load_patch(patch).text.variants] == [
        ">=0.19.0,<0.20",
        ">=0.20.0,<0.21",
        ">=0.21",
    ]
    assert set(states(patch).values()) <= {"applies", "drifted"}


def test_a_rebase_below_the_first_range_claims_no_release_older_than_the_one_named(
    patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    claim(patch, ">=0.21")
    use_releases(monkeypatch, tmp_path, v0_20_0=CLEAN, v0_20_1=CLEAN, v0_20_2=CLEAN, v0_21_0=OLD)
    assert carry(patch, "0.20.1").versions == ">=0.20.1,<0.21"


def test_a_renamed_function_is_offered_and_taken_with_successor(
    patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_releases(monkeypatch, tmp_path, v0_20_0=OLD, v0_21_0={"vllm/v1/core.py": "x = 1\n", "vllm/v1/new.py": RENAMED})
    before = snapshot(patch)
    with pytest.raises(
        PatchConflict, match=r"the most similar code: worth in vllm/v1/new\.py \(the same code\)"
    ) as caught:
        carry(patch, "0.21.0")
    hint = "gemmaspec patch rebase right-value --release 0.21.0 --successor vllm/v1/new.py:worth"
    assert caught.value.hint == hint
    assert snapshot(patch) == before
    assert not rebase_state.place_of(ID).exists()
    assert run([*hint.split()[1:], "--patches", str(patch.parent)]) == 0
    assert load_patch(patch).text.variants[-1].scopes == {"vllm/v1/new.py": ("worth",)}
    assert states(patch) == {"0.20.0": "applies", "0.21.0": "applies"}


def test_a_successor_in_the_same_file_is_merged_under_its_new_name(
    patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_releases(monkeypatch, tmp_path, v0_20_0=OLD, v0_21_0=RENAMED)
    done = carry(patch, "0.21.0", successor="vllm/v1/core.py:worth")
    assert (done.outcome, done.versions, done.moved) == ("written", ">=0.21.0", {})
    assert load_patch(patch).text.variants[-1].scopes == {"vllm/v1/core.py": ("worth",)}


@pytest.mark.parametrize("successor", ["vllm/v1/core.py:nothing", "vllm/v1/core.py", "vllm/gone.py:worth"])
def test_a_successor_that_is_not_there_is_refused(
    patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, successor: str
) -> None:
    use_releases(monkeypatch, tmp_path, v0_20_0=OLD, v0_21_0=RENAMED)
    before = snapshot(patch)
    with pytest.raises(PatchConflict, match=r" of vllm 0\.21\.0 does not define "):
        carry(patch, "0.21.0", successor=successor)
    assert snapshot(patch) == before


@pytest.mark.network
def test_the_gap_of_0_20_is_taken_by_a_rebase_to_0_20_2(tmp_path: Path) -> None:
    """Real wheels: draft-text-only without its diff for 0.20."""
    id_ = "draft-text-only"
    shipped, patch = data.PATCHES / id_, tmp_path / "patches" / id_
    shutil.copytree(shipped, patch)
    for gone in ("0.20.diff", "known.json"):
        (patch / gone).unlink()
    text = (patch / "patch.yaml").read_text()
    begin, end = text.index("  - diff: 0.20.diff"), text.index("  - diff: 0.21.diff")
    (patch / "patch.yaml").write_text(text[:begin] + text[end:])
    done = rebase(RebaseRequest(patch=id_, to="0.20.2", folders=(patch.parent,)))
    assert done.versions == ">=0.20.0,<0.21.0"
    ends = verify(VerifyRequest(folders=(patch.parent,), releases=("0.19.1..0.21.0",), patches=(id_,)))
    states = {cell.vllm: cell.verdict.state for cell in ends.cells}
    assert all(state == ("applies" if vllm.startswith("0.20.") else "drifted") for vllm, state in states.items()), (
        states
    )
