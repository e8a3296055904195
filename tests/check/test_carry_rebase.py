"""Carrying a patch to a vLLM that it does not fit; the releases are FAKE but for those of the tests marked network."""

from __future__ import annotations

import difflib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gemmaspec.check.carry import rebase_state
from gemmaspec.check.carry.rebase import Rebased, RebaseRequest, rebase, resume
from gemmaspec.check.carry.verify import VerifyRequest, verify
from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.errors import EnvironmentMissing, PatchConflict, PatchError, UsageError
from gemmaspec.core.launcher import launch
from gemmaspec.core.patching.patch import load_patch
from gemmaspec.run.trees.listing import published
from gemmaspec.run.trees.reader import ReleaseReader
from tests.support import vllm_trees as fake
from tests.support.carrying import CLEAN, DIFF, OLD, TEXT, TORN, cache, snapshot, use_releases, write_patch  # noqa: F401

ID = "right-value"


@pytest.fixture
def patch(tmp_path: Path) -> Path:
    return write_patch(tmp_path / "patches")


def carry(patch: Path, to: str | None = None, **more: object) -> Rebased:
    said: list[str] = []
    done = rebase(RebaseRequest(patch=patch.name, to=to, folders=(patch.parent,), **more), said.append)  # type: ignore[arg-type]
    carry.said = said  # type: ignore[attr-defined]
    return done


def states(patch: Path) -> dict[str, str]:
    """The state on each release."""
    found = verify(VerifyRequest(folders=(patch.parent,), all_releases=True, patches=(patch.name,)))
    return {cell.vllm: cell.verdict.state for cell in found.cells}


def ranges(patch: Path) -> list[str]:
    return [variant.versions for variant in load_patch(patch).text.variants]


def test_a_patch_that_fits_is_left_alone(patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_releases(
        monkeypatch, tmp_path, v0_20_0=OLD, v0_21_0="# more\n" + OLD, v0_22_0=OLD.replace("stock", "fixed upstream")
    )
    before = snapshot(patch)
    assert carry(patch, "0.21.0").outcome == "fits"
    superseded = carry(patch, "0.22.0").verdict
    assert superseded is not None
    assert superseded.state == "superseded"
    assert snapshot(patch) == before
    assert not rebase_state.place_of(ID).exists()


def test_a_merge_without_conflict_becomes_a_variant_with_the_least_context(
    patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_releases(monkeypatch, tmp_path, v0_20_0=OLD, v0_21_0=CLEAN)
    assert states(patch) == {"0.20.0": "applies", "0.21.0": "conflict"}
    done = carry(patch, "0.21.0")
    assert (done.outcome, done.diff, done.versions, done.base) == ("written", "0.21.diff", ">=0.21.0", "0.20.0")
    assert (patch / "0.21.diff").read_text() == (
        "--- a/vllm/v1/core.py\n+++ b/vllm/v1/core.py\n@@ -9 +9,2 @@\n"
        '-        return "stock"\n+        # by us\n+        return "patched"\n'
    )
    assert states(patch) == {"0.20.0": "applies", "0.21.0": "applies"}
    changed = set((patch / "patch.yaml").read_text().splitlines()) - set(TEXT.splitlines())
    assert changed == {
        '  - {diff: 0.19.diff, versions: ">=0.19.0,<0.21.0", scopes: {vllm/v1/core.py: [value]}}',
        '  - {diff: 0.21.diff, versions: ">=0.21.0", scopes: {vllm/v1/core.py: [value]}}',
    }
    assert not rebase_state.place_of(ID).exists()
    assert carry(patch, "0.21.0").outcome == "fits"


def test_the_range_begins_at_the_oldest_release_that_needs_the_new_diff(
    patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_releases(monkeypatch, tmp_path, v0_20_0=OLD, v0_21_0=CLEAN, v0_22_0=CLEAN, v0_23_0=CLEAN)
    assert carry(patch, "0.22.0").versions == ">=0.21.0"
    assert set(states(patch).values()) <= {"applies", "drifted"}


def test_a_variant_in_the_middle_ends_where_the_one_after_it_begins(
    patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = TEXT.replace(
        'versions: ">=0.19.0", scopes: {vllm/v1/core.py: [value]}}',
        'versions: ">=0.19.0,<0.22", scopes: {vllm/v1/core.py: [value]}}\n  - {diff: 0.22.diff, versions: ">=0.22", scopes: {vllm/v1/core.py: [value]}}',
    )
    (patch / "patch.yaml").write_text(text)
    (patch / "0.22.diff").write_text(DIFF)
    use_releases(monkeypatch, tmp_path, v0_20_0=OLD, v0_21_0=CLEAN, v0_22_0=OLD)
    carry(patch, "0.21.0")
    assert ranges(patch) == [">=0.19.0,<0.21.0", ">=0.21.0,<0.22", ">=0.22"]
    assert set(states(patch).values()) <= {"applies", "drifted"}


def test_a_release_between_two_ranges_gets_one_of_its_own(
    patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scopes = "scopes: {vllm/v1/core.py: [value]}}"
    first, second = (
        f'  - {{diff: {diff}, versions: "{range_}", {scopes}\n'
        for diff, range_ in (("0.19.diff", ">=0.19.0,<0.20"), ("0.22.diff", ">=0.22"))
    )
    (patch / "patch.yaml").write_text(
        TEXT.replace(f'  - {{diff: 0.19.diff, versions: ">=0.19.0", {scopes}\n', first + second)
    )
    (patch / "0.22.diff").write_text(DIFF)
    use_releases(monkeypatch, tmp_path, v0_19_0=OLD, v0_21_0=CLEAN, v0_22_0=OLD)
    assert carry(patch, "0.21.0").versions == ">=0.21.0,<0.22"
    assert ranges(patch) == [">=0.19.0,<0.20", ">=0.21.0,<0.22", ">=0.22"]
    assert set(states(patch).values()) <= {"applies", "drifted"}


def test_a_release_that_the_old_diff_fits_is_not_taken_away(
    patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    moved = {"vllm/v1/core.py": "x = 1\n", "vllm/v1/other.py": OLD}
    use_releases(monkeypatch, tmp_path, v0_20_0=OLD, v0_21_0=moved, v0_22_0=OLD)
    before = snapshot(patch)
    with pytest.raises(PatchConflict, match=r"would not fit vllm 0\.22\.0"):
        carry(patch, "0.21.0")
    assert snapshot(patch) == before


def test_code_that_moved_is_found_where_it_is_now(patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rest, value = "import os\n\n\ndef other(x):\n    return x\n", OLD[OLD.index("def value") : OLD.index("def other")]
    new = {
        "vllm/v1/core.py": rest,
        "vllm/v1/planning/moved.py": f"import sys\n\n\n{value}",
        "vllm/far/away.py": "def value(x):\n    return x\n",
    }
    use_releases(monkeypatch, tmp_path, v0_20_0=OLD, v0_21_0=new)
    done = carry(patch, "0.21.0")
    assert done.moved == {"vllm/v1/planning/moved.py": "vllm/v1/core.py"}
    assert "value is now in vllm/v1/planning/moved.py" in carry.said  # type: ignore[attr-defined]
    text = load_patch(patch).text
    assert text.variants[-1].scopes == {"vllm/v1/planning/moved.py": ("value",)}
    assert [rule.path for rule in text.superseded] == ["vllm/v1/core.py"]  # of a release, whose file did not move
    assert states(patch) == {"0.20.0": "applies", "0.21.0": "applies"}


def test_of_several_functions_of_that_name_the_one_that_is_alike_is_taken(
    patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    value = OLD[OLD.index("def value") : OLD.index("def other")]
    new = {"vllm/v1/a.py": "def value(x):\n    return x\n", "vllm/v1/b.py": value}
    use_releases(monkeypatch, tmp_path, v0_20_0=OLD, v0_21_0=new)
    assert carry(patch, "0.21.0").moved == {"vllm/v1/b.py": "vllm/v1/core.py"}


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ({"vllm/v1/a.py": "x = 1\n"}, "vllm 0.21.0 no longer defines value, which was in vllm/v1/core.py"),
        ({"vllm/v1/a.py": OLD, "vllm/v1/b.py": OLD}, "value, which was in vllm/v1/core.py, is in vllm/v1/a.py and"),
        ({"vllm/v1/a.py": OLD + OLD}, "its code is now in vllm/v1/a.py, more than once"),
    ],
)
def test_code_that_is_nowhere_or_in_two_places_needs_a_human(
    patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, new: dict[str, str], said: str
) -> None:
    use_releases(monkeypatch, tmp_path, v0_20_0=OLD, v0_21_0=new)
    before = snapshot(patch)
    with pytest.raises(PatchConflict) as caught:
        carry(patch, "0.21.0")
    assert said in caught.value.message
    assert caught.value.hint is not None
    assert "gemmaspec patch new right-value --release 0.21.0" in caught.value.hint
    assert snapshot(patch) == before
    assert not rebase_state.place_of(ID).exists()


@pytest.fixture
def torn(patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The edited file of a rebase that needs a hand."""
    use_releases(monkeypatch, tmp_path, v0_20_0=OLD, v0_21_0=TORN)
    with pytest.raises(PatchConflict) as caught:
        carry(patch, "0.21.0")
    file = rebase_state.place_of(ID) / "vllm/v1/core.py"
    assert caught.value.exit_code == 5
    assert caught.value.hint is not None
    assert str(file) in caught.value.hint
    assert "gemmaspec patch continue right-value" in caught.value.hint
    return file


def test_a_conflict_is_resolved_by_hand_and_continued(torn: Path, patch: Path) -> None:
    text = torn.read_text()
    assert [line.split()[0] for line in text.splitlines() if line.startswith(("<<<", "|||", "===", ">>>"))] == [
        "<<<<<<<",
        "|||||||",
        "=======",
        ">>>>>>>",
    ]
    head, rest = text.split("<<<<<<<", 1)
    torn.write_text(
        head + '        # by us\n        return "patched"\n' + rest.split(">>>>>>>", 1)[1].split("\n", 1)[1]
    )
    done = resume(ID)
    assert (done.outcome, done.diff, done.versions) == ("written", "0.21.diff", ">=0.21.0")
    assert states(patch) == {"0.20.0": "applies", "0.21.0": "applies"}
    assert not rebase_state.place_of(ID).exists()


def test_what_is_not_resolved_is_not_written(torn: Path, patch: Path) -> None:
    before = snapshot(patch)
    with pytest.raises(PatchConflict, match=r"core\.py:9: unresolved conflict marker"):
        resume(ID)
    torn.write_text(TORN)
    with pytest.raises(PatchError, match="nothing was changed"):
        resume(ID)
    torn.write_text(TORN.replace("stocked", 'patched" +'))
    with pytest.raises(PatchError, match="not valid Python") as caught:
        resume(ID)
    assert caught.value.hint is not None
    assert "--abort" in caught.value.hint
    assert snapshot(patch) == before


def test_a_second_rebase_waits_for_the_first(torn: Path, patch: Path) -> None:
    with pytest.raises(UsageError, match="a rebase of right-value is in progress"):
        carry(patch, "0.21.0")
    rebase_state.abort(ID)
    assert not torn.exists()
    with pytest.raises(UsageError, match="no rebase of right-value is in progress"):
        rebase_state.abort(ID)
    with pytest.raises(UsageError, match="no rebase of right-value is in progress"):
        resume(ID)


def test_the_other_sides_are_there_to_look_at_and_must_stay_as_they_are(torn: Path) -> None:
    place = rebase_state.place_of(ID)
    sides = {side: (place / side / "vllm/v1/core.py").read_text() for side in ("base", "ours", "theirs")}
    assert sides == {
        "base": OLD,
        "ours": OLD.replace('        return "stock"', '        # by us\n        return "patched"', 1),
        "theirs": TORN,
    }
    torn.write_text(TORN.replace("stocked", "patched"))
    (place / "theirs/vllm/v1/core.py").write_text(OLD)
    with pytest.raises(PatchError, match="is missing, or the latter was edited"):
        resume(ID)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("files", []),
        ("patch", "other"),
        ("schema", 2),
        ("floor", None),
        ("files", [{"path": "vllm/../../x.py", "source": "vllm/a.py", "conflicts": 0, "theirs": ""}]),
    ],
)
def test_a_state_that_was_tampered_with_is_refused(torn: Path, key: str, value: object) -> None:
    file = rebase_state.place_of(ID) / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with pytest.raises(PatchError, match=r"state\.json"):
        resume(ID)


@pytest.mark.parametrize("name", ["0.21.diff", "patch.yaml"])
def test_being_killed_while_it_is_written_does_no_harm(
    name: str, patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_releases(monkeypatch, tmp_path, v0_20_0=OLD, v0_21_0=CLEAN)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, name, "patch", "rebase", ID, "--release", "0.21.0", "--patches", patch.parent],
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert rebase_state.is_proven(ID)
    with pytest.raises(UsageError, match="its result is being written"):
        rebase_state.abort(ID)
    assert resume(ID).diff == "0.21.diff"
    assert states(patch) == {"0.20.0": "applies", "0.21.0": "applies"}
    assert not rebase_state.place_of(ID).exists()


KILLED = """
import os, signal, sys
from gemmaspec.check.carry import rebase_state
real = rebase_state.write_whole
def write_whole(path, text, **more):
    if path.name == sys.argv[1] and path.parent.parent.name == "patches":
        os.kill(os.getpid(), signal.SIGKILL)
    real(path, text, **more)
rebase_state.write_whole = write_whole
from gemmaspec.cli.app import run
run(sys.argv[2:])
"""


def test_a_nightly_in_a_folder_is_carried_to_by_its_number(
    patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_releases(monkeypatch, tmp_path, v0_20_0=OLD)
    tree = fake.write_tree(tmp_path / "tree", version="0.21.1.dev45+gabc", core=CLEAN)
    assert carry(patch, tree=tree).versions == ">=0.21.1"


def test_a_build_without_a_version_needs_to_be_told_the_release(
    patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_releases(monkeypatch, tmp_path, v0_20_0=OLD)
    tree = fake.write_tree(tmp_path / "tree", version="0.21.0", core=CLEAN)
    for file in (*tree.rglob("_version.py"), *tree.rglob("METADATA")):
        file.unlink()
    with pytest.raises(UsageError, match="the version of this vLLM is unknown") as caught:
        carry(patch, tree=tree)
    assert caught.value.hint is not None
    assert "--since" in caught.value.hint
    assert carry(patch, tree=tree, floor="0.21.0").versions == ">=0.21.0"
    with pytest.raises(UsageError, match="--since 'newest' must be a release like"):
        carry(patch, tree=tree, floor="newest")


def test_a_patch_on_top_of_another_is_carried_on_top_of_it(
    patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    under = "--- a/vllm/v1/core.py\n+++ b/vllm/v1/core.py\n@@ -5 +5,2 @@\n     total = 0\n+    # under\n"
    write_patch(patch.parent, id_="under", diff=under)
    (patch / "patch.yaml").write_text(TEXT + "needs: [under]\n")
    clean = OLD.replace("total += one", "total += int(one)")  # not the lines next to those of the patch under it
    use_releases(monkeypatch, tmp_path, v0_20_0=OLD, v0_21_0=clean, v0_22_0=clean.replace("total = 0", "total = 1"))
    carry(patch, "0.21.0")
    assert states(patch)["0.21.0"] == "applies"
    with pytest.raises(PatchConflict, match=r"under, which it needs, does not fit vllm 0\.22\.0"):
        carry(patch, "0.22.0")


def test_without_git_it_says_so(patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_releases(monkeypatch, tmp_path, v0_20_0=OLD, v0_21_0=CLEAN)
    states(patch)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(EnvironmentMissing, match="git is not on PATH, but a merge needs it"):
        carry(patch, "0.21.0")


def test_nothing_to_merge_from_is_said(patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_releases(monkeypatch, tmp_path, v0_21_0=CLEAN)
    with pytest.raises(EnvironmentMissing, match="applies to no published vllm release; there is no merge base"):
        carry(patch, "0.21.0")


@pytest.mark.parametrize("id_", ["../x", "a/b", "A", "", "-a", "a--b"])
def test_an_id_that_is_none_is_refused_before_it_is_a_path(id_: str) -> None:
    with pytest.raises(UsageError, match="invalid patch id"):
        rebase_state.place_of(id_)


def test_the_command_line_prints_what_was_done(
    patch: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use_releases(monkeypatch, tmp_path, v0_20_0=OLD, v0_21_0=TORN)
    words = ["patch", "rebase", ID, "--release", "0.21.0", "--patches", str(patch.parent)]
    assert run([*words, "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "PatchConflict"
    assert run(["patch", "continue", ID, "--abort", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "aborted"
    assert run(["patch", "rebase", ID, "--release", "0.20.0", "--patches", str(patch.parent), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": 1,
        "ok": True,
        "outcome": "fits",
        "patch": ID,
        "vllm": "0.20.0",
        "state": "applies",
        "diff": None,
        "versions": None,
        "base": None,
        "moved": {},
    }
    assert run(["patch", "rebase", ID]) == 2


@pytest.mark.network
def test_the_patch_for_0_32_is_carried_to_the_file_that_0_33_moved_it_to(tmp_path: Path) -> None:
    """Real wheels: kv_cache_utils.py of 0.32.0, kv_cache_planning.py of 0.33.0."""
    id_ = "kv-spec-uniform-valueerror"
    shipped, patch = data.PATCHES / id_, tmp_path / "patches" / id_
    shutil.copytree(shipped, patch)
    for gone in ("0.33.diff", "known.json"):
        (patch / gone).unlink()
    text = (patch / "patch.yaml").read_text()
    begin, end = text.index("  - diff: 0.33.diff"), text.index("superseded:")
    (patch / "patch.yaml").write_text(text[:begin].replace(",<0.33", "") + text[end:])
    done = carry(patch, "0.33.0")
    assert done.moved == {"vllm/v1/core/kv_cache_planning.py": "vllm/v1/core/kv_cache_utils.py"}
    assert done.base == "0.32.0"
    assert (patch / "0.33.diff").read_bytes() == (shipped / "0.33.diff").read_bytes()
    mine, theirs = load_patch(patch), load_patch(shipped)
    assert set(mine.text.superseded) == set(theirs.text.superseded)
    assert [one.scopes for one in mine.text.variants] == [one.scopes for one in theirs.text.variants]
    assert ranges(patch) == [">=0.19.0,<0.33.0", ">=0.33.0"]


def real(release: str, path: str) -> bytes:
    """A file of a real wheel."""
    content = ReleaseReader(release, published()).files([path])[path]
    assert content is not None
    return content


@pytest.mark.network
def test_a_diff_with_much_context_is_carried_over_a_release_that_changed_it(tmp_path: Path) -> None:
    """Real wheels: the docstring around the hunk was rewritten in 0.22.0."""
    id_, path = "kv-sharing-uniform-specs", "vllm/v1/worker/utils.py"
    shipped, patch = data.PATCHES / id_, tmp_path / "patches" / id_
    shutil.copytree(shipped, patch)
    (patch / "known.json").unlink()
    stock = real("0.21.0", path)
    (edit,) = load_patch(shipped).variants[0].files
    done = launch.decide_file(edit, stock).after
    assert done is not None
    lines = [text.decode().splitlines(keepends=True) for text in (stock, done)]
    wide = "".join(difflib.unified_diff(*lines, f"a/{path}", f"b/{path}", n=10))
    (patch / "0.19.diff").write_text(wide)
    text = (patch / "patch.yaml").read_text()
    scope = "add_kv_sharing_layers_to_kv_cache_groups"
    # ten lines of context begin in the docstring of the function
    (patch / "patch.yaml").write_text(text.replace(f"{path}: [{scope}]", f"{path}: [__doc__]"))
    assert carry(patch, "0.21.0").outcome == "fits"
    assert carry(patch, "0.22.0").versions == ">=0.22.0"
    made, wanted = (
        (one / name).read_text().splitlines() for one, name in ((patch, "0.22.diff"), (shipped, "0.19.diff"))
    )
    assert [line for line in made if line[:2] != "@@"] == [line for line in wanted if line[:2] != "@@"]
    assert load_patch(patch).text.variants[1].scopes == {path: (scope,)}
    after = verify(VerifyRequest(folders=(patch.parent,), releases=("0.21.0..0.33.0",), patches=(id_,)))
    states = {cell.vllm: cell.verdict.state for cell in after.cells}
    assert all(state == ("drifted" if vllm == "0.21.0" else "applies") for vllm, state in states.items()), states


@pytest.mark.network
def test_a_line_that_both_sides_changed_is_resolved_by_hand(tmp_path: Path) -> None:
    """A real file of 0.33.0, in which the line of the patch was edited by hand."""
    id_, path = "kv-spec-uniform-valueerror", "vllm/v1/core/kv_cache_planning.py"
    patch, tree = tmp_path / "patches" / id_, tmp_path / "tree"
    shutil.copytree(data.PATCHES / id_, patch)
    fake.write_tree(tree, version="0.34.0")
    stock = real("0.33.0", path).decode()
    head, tail = stock.split("def is_kv_cache_spec_uniform", 1)
    torn = f"{head}def is_kv_cache_spec_uniform" + tail.replace(
        "except AssertionError:", "except (AssertionError, KeyError):", 1
    )
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).write_text(torn)
    with pytest.raises(PatchConflict, match="1 conflict to resolve"):
        carry(patch, tree=tree)
    edited = rebase_state.place_of(id_) / path
    assert edited.read_text().count("<<<<<<< ") == 1
    edited.write_text(torn.replace("(AssertionError, KeyError)", "(AssertionError, KeyError, ValueError)", 1))
    done = resume(id_)
    assert (done.diff, done.versions) == ("0.34.diff", ">=0.34.0")
    assert ranges(patch) == [">=0.19.0,<0.33", ">=0.33,<0.34.0", ">=0.34.0"]
    assert (patch / "0.34.diff").read_text().splitlines()[3:] == [
        "-    except (AssertionError, KeyError):",
        "+    except (AssertionError, KeyError, ValueError):",
    ]
