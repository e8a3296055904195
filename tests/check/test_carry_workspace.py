"""Making a patch: a copy of vLLM's files, an edit, a commit. The releases are FAKE but for those marked network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmaspec.check.carry import rebase_state, workspace
from gemmaspec.check.carry.verify import VerifyRequest as Verify
from gemmaspec.check.carry.verify import verify
from gemmaspec.check.carry.workspace import commit, open_workspace
from gemmaspec.cli.app import run
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, PatchError, UsageError
from gemmaspec.core.launcher import launch
from gemmaspec.core.patching.patch import load_patch
from gemmaspec.core.patching.plan import launcher_patch
from tests.support import vllm_trees as fake
from tests.support.carrying import CLEAN, OLD, TORN, snapshot, use_releases, write_patch

CORE, PLAIN = "vllm/v1/core.py", "vllm/v1/plain.py"


@pytest.fixture(autouse=True)
def cache(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An empty cache and a few releases, but for tests that read real wheels."""
    if request.node.get_closest_marker("network"):
        yield
        return
    for _ in fake.own_cache(monkeypatch, tmp_path / "cache"):
        use_releases(monkeypatch, tmp_path, v0_20_0={CORE: OLD, PLAIN: "a = 1\n"}, v0_21_0=TORN)
        yield


def patched(text: str) -> str:
    return text.replace('return "stock"', 'return "patched"', 1)


def test_an_edit_becomes_a_patch_that_is_yet_to_be_written_about(tmp_path: Path) -> None:
    (file,) = open_workspace("right-value", [CORE], release="0.20.0")
    assert file.read_text() == OLD
    file.write_text(patched(OLD))
    done = commit("right-value", folder=tmp_path / "patches")
    assert (done.diff, done.versions, done.unchanged) == ("0.20.diff", ">=0.20.0", [])
    text = load_patch(tmp_path / "patches/right-value").text
    assert not text.reviewed
    assert text.hole.startswith("TODO")
    assert text.variants[0].scopes == {CORE: ("value",)}
    found = verify(Verify(folders=(tmp_path / "patches",), releases=("0.20.0",)))
    assert [cell.verdict.state for cell in found.cells] == ["applies"]
    assert not workspace.place_of("right-value").exists()


def test_a_commit_says_which_other_releases_the_diff_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_releases(monkeypatch, tmp_path, v0_20_0={CORE: OLD}, v0_21_0={CORE: OLD}, v0_22_0={CORE: "a = 1\n"})
    (file,) = open_workspace("right-value", [CORE], release="0.20.0")
    file.write_text(patched(OLD))
    assert run(["patch", "commit", "right-value", "--patches", str(tmp_path / "patches")]) == 0
    assert "it also fits 0.21.0: variants.0.versions in patch.yaml" in capsys.readouterr().err


def test_each_fault_of_an_invalid_patch_is_a_row_of_its_own(tmp_path: Path) -> None:
    (file,) = open_workspace("right-value", [CORE], release="0.20.0")
    file.write_text(patched(OLD))
    commit("right-value", folder=tmp_path / "patches")
    text = tmp_path / "patches/right-value/patch.yaml"
    text.write_text(text.read_text().replace("reviewed: false", "reviewed: true"))
    (cell,) = verify(Verify(folders=(tmp_path / "patches",), releases=("0.20.0",))).cells
    assert {one.path for one in cell.verdict.files} == {"right-value/patch.yaml"}
    assert len(cell.verdict.files) > 3
    assert all("patch.yaml" not in one.detail for one in cell.verdict.files)


def test_several_files_can_be_opened_and_those_not_edited_are_left_out(tmp_path: Path) -> None:
    (file,) = open_workspace("right-value", [CORE], release="0.20.0")
    file.write_text(patched(OLD))
    assert len(open_workspace("right-value", [CORE, PLAIN], release="0.20.0")) == 2
    assert file.read_text() == patched(OLD)
    assert commit("right-value", folder=tmp_path / "patches").unchanged == [PLAIN]


def test_for_a_patch_that_is_there_the_edit_becomes_one_more_variant(tmp_path: Path) -> None:
    patch = write_patch(tmp_path / "patches")
    (file,) = open_workspace("right-value", [CORE], release="0.21.0")
    file.write_text(TORN.replace("stocked", "patched"))
    done = commit("right-value", folder=patch.parent)
    assert (done.diff, done.versions) == ("0.21.diff", ">=0.21.0")
    text = load_patch(patch).text
    assert [variant.versions for variant in text.variants] == [">=0.19.0,<0.21.0", ">=0.21.0"]
    assert text.reviewed
    assert not rebase_state.place_of("right-value").exists()


def test_an_edit_that_does_not_do_leaves_all_as_it_was(tmp_path: Path) -> None:
    patch = write_patch(tmp_path / "patches")
    (file,) = open_workspace("right-value", [CORE], release="0.21.0")
    before = snapshot(patch)
    file.write_text(file.read_text().removesuffix("    return None\n"))
    with pytest.raises(PatchError, match="cannot be detected once applied"):
        commit("right-value", folder=patch.parent)
    assert snapshot(patch) == before
    assert not rebase_state.place_of("right-value").exists()
    assert file.exists()


@pytest.mark.parametrize(
    ("paths", "release", "error", "said"),
    [
        ([], "0.20.0", UsageError, "name the files to edit"),
        (["vllm/../x.py"], "0.20.0", UsageError, "is not a .py file in vllm/"),
        (["/etc/passwd"], "0.20.0", UsageError, "is not a .py file in vllm/"),
        (["vllm/x.cu"], "0.20.0", UsageError, "is not a .py file in vllm/"),
        (["vllm/v1/gone.py"], "0.20.0", EnvironmentMissing, "vllm/v1/gone.py is missing in vllm 0.20.0"),
        ([CORE], "0.99.0", EnvironmentMissing, "vllm 0.99.0 has no released wheel"),
        ([CORE], None, UsageError, "name one vLLM"),
        ([CORE], "0.20.0..0.21.0", UsageError, "name one release"),
    ],
)
def test_what_cannot_be_opened_is_said(
    paths: list[str], release: str | None, error: type[GemmaspecError], said: str
) -> None:
    with pytest.raises(error) as caught:
        open_workspace("right-value", paths, release=release)
    assert said in caught.value.message
    assert not workspace.place_of("right-value").exists()


def test_a_copy_stays_of_one_vllm() -> None:
    open_workspace("right-value", [CORE], release="0.20.0")
    with pytest.raises(UsageError, match=r"contains files of vllm 0\.20\.0"):
        open_workspace("right-value", [CORE], release="0.21.0")


def test_nothing_edited_is_no_patch_and_nothing_opened_neither(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no workspace for a patch right-value"):
        commit("right-value", folder=tmp_path)
    open_workspace("right-value", [CORE], release="0.20.0")
    with pytest.raises(UsageError, match="no file of right-value was edited"):
        commit("right-value", folder=tmp_path)
    with pytest.raises(UsageError, match="invalid patch id"):
        open_workspace("../x", [CORE], release="0.20.0")


def test_a_copy_that_was_tampered_with_is_refused(tmp_path: Path) -> None:
    (file,) = open_workspace("right-value", [CORE], release="0.20.0")
    place = workspace.place_of("right-value")
    file.write_text(patched(OLD))
    (place / "pristine" / CORE).write_text(CLEAN)
    with pytest.raises(PatchError, match="is missing, or the latter was edited"):
        commit("right-value", folder=tmp_path)
    state = json.loads((place / "state.json").read_text())
    state["files"][0]["path"] = "vllm/../../x.py"
    (place / "state.json").write_text(json.dumps(state))
    with pytest.raises(PatchError, match=r"state\.json"):
        commit("right-value", folder=tmp_path)


def test_new_patches_go_into_the_users_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMASPEC_PATCHES", str(tmp_path / "mine"))
    (file,) = open_workspace("right-value", [CORE], release="0.20.0")
    file.write_text(patched(OLD))
    assert commit("right-value").patch.folder == tmp_path / "mine/right-value"


def test_installed_patches_are_not_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmaspec.core import data

    monkeypatch.delenv("GEMMASPEC_PATCHES", raising=False)
    monkeypatch.setattr(data, "PATCHES", data.BUNDLED / "patches")
    (file,) = open_workspace("right-value", [CORE], release="0.20.0")
    file.write_text(patched(OLD))
    with pytest.raises(UsageError, match="cannot add patches"):
        commit("right-value")


def test_the_command_line_says_where_and_what_is_left_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["patch", "new", "right-value", "--release", "0.20.0", "--file", CORE]) == 0
    printed = capsys.readouterr()
    file = Path(printed.out.strip())
    assert "gemmaspec patch commit right-value" in printed.err
    file.write_text(patched(OLD))
    assert run(["patch", "commit", "right-value", "--patches", str(tmp_path / "patches")]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == str(tmp_path / "patches/right-value/0.20.diff")
    assert "unreviewed: write the texts marked TODO" in printed.err
    assert run(["patch", "list", "--patches", str(tmp_path / "patches")]) == 0
    assert "unreviewed; no shipped profile" in capsys.readouterr().out


@pytest.mark.network
def test_a_shipped_patch_made_again_by_hand_is_the_same_diff(tmp_path: Path) -> None:
    """The real file of 0.26.0: the edit of draft-text-only, opened, made and committed."""
    from gemmaspec.core import data

    path = "vllm/v1/spec_decode/llm_base_proposer.py"
    (file,) = open_workspace("draft-text-only", [path], release="0.26.0")
    line = "        if self.supports_mm_inputs:\n"
    note = "            # the target's multimodal mask does not fit the draft's longer batch\n"
    head, tail = file.read_text().split("def _warn_if_multimodal", 1)
    file.write_text(
        head
        + "def _warn_if_multimodal"
        + tail.replace(line, f"{line}{note}            self.supports_mm_inputs = False\n", 1)
    )
    done = commit("draft-text-only", folder=tmp_path)
    made = (done.patch.folder / done.diff).read_text().splitlines()
    shipped = (data.PATCHES / "draft-text-only/0.21.diff").read_text().splitlines()
    assert [one for one in made if one[:2] != "@@"] == [one for one in shipped if one[:2] != "@@"]
    assert done.patch.text.variants[0].scopes == {path: ("SpecDecodeBaseProposer._warn_if_multimodal",)}


def test_a_new_patch_knows_its_place_in_the_vllm_that_it_was_made_on(tmp_path: Path) -> None:
    core = OLD + "\n\ndef again(x):\n    return value(x)\n"
    tree = fake.write_tree(tmp_path / "tree", core=core)
    (file,) = open_workspace("right-value", ["vllm/v1/core.py"], tree=tree)
    file.write_text(core.replace('return "stock"', 'return "patched"'))
    patch = commit("right-value", folder=tmp_path / "patches").patch
    (edit,) = patch.variants[0].files
    assert edit.known[0].places[0].above
    compiled = launcher_patch(patch)
    moved = core.replace('return "stock"', 'return "other"').replace(
        "total = 0", 'if not x:\n        return "stock"\n    total = 0'
    )
    for text, state in ((core + "\n", "applies"), (moved, "conflict")):
        plan = launch.Plan(1, "", "", (), (compiled,), "")
        (result,), _ = launch.decide_plan(plan, "0.35.0", {"vllm/v1/core.py": text.encode()}.get)
        assert result.state == state
