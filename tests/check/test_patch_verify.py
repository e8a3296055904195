"""`patch verify`: every patch on every tree."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from gemmaspec.check.carry.patchset import PatchOnTree
from gemmaspec.cli import output
from gemmaspec.cli.app import run
from gemmaspec.cli.text import matrix
from gemmaspec.core.launcher import launch
from gemmaspec.core.patching.decide import FileVerdict, PatchVerdict
from gemmaspec.run.trees import verdicts
from gemmaspec.run.trees.tree import TreeSource
from tests.support import vllm_trees as fake
from tests.support.launching import CORE

FIXED = CORE.replace('"stock"', '"fixed upstream"')
PATCHED = CORE.replace('    return "stock"', '    return "patched"  # by right-value')
TWICE = CORE + "\n\ndef value():\n" + '    return "stock"\n'
OTHER = CORE.replace('"stock"', '"something else"')


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    yield from fake.own_cache(monkeypatch, tmp_path / "cache")


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    fake.write_patch(tmp_path / "patches")
    return tmp_path / "patches"


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    fake.use_index(monkeypatch, fake.write_index(tmp_path))
    return tmp_path


def verify_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    code = run(["patch", "verify", *arguments, "--json"])
    printed = capsys.readouterr()
    return code, json.loads(printed.out), printed.err


def states(document: dict[str, Any]) -> dict[str, str]:
    return {row["tree"]["ref"]: row["state"] for row in document["results"]}


@pytest.mark.parametrize(
    ("core", "state", "code"),
    [
        (CORE, "applies", 0),
        (PATCHED, "applied", 0),
        (FIXED, "superseded", 0),
        (OTHER, "conflict", 5),
        (TWICE, "ambiguous", 5),
        (None, "missing", 5),
    ],
)
def test_a_folder_gets_the_launchers_verdict_and_its_exit_code(
    core: str | None, state: str, code: int, patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = fake.write_tree(tmp_path / "tree", core=core or CORE)
    if core is None:
        (tree / "vllm/v1/core.py").unlink()
    exit_code, document, _ = verify_json(capsys, "--patches", str(patches), "--tree", str(tree))
    assert (exit_code, states(document)) == (code, {str(tree): state})
    assert document["ok"] is (code == 0)


def test_the_document_is_the_promised_one(patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = fake.write_tree(tmp_path / "tree", core=OTHER)
    _, document, _ = verify_json(capsys, "--patches", str(patches), "--tree", str(tree))
    file = {"path": "vllm/v1/core.py", "state": "conflict", "line": 15, "detail": "the old lines are not in value"}
    row = {
        "patch": "right-value",
        "tree": {"kind": "tree", "ref": str(tree), "vllm": "0.20.0"},
        "state": "conflict",
        "required": True,
        "variant": "0.19",
        "detail": "vLLM may have fixed it itself: run gemmaspec patch prove right-value --tree DIR, where DIR contains vllm/"
        "; a start that requires it ends with exit code 5",
        "files": [file],
    }
    (found,) = document["results"]
    lines = found["files"][0].pop("expected"), found["files"][0].pop("found")
    assert document == {"schema": 1, "ok": False, "results": [row]}
    assert lines[0] == ["def value():", '    return "stock"']
    assert lines[1][0] == "def value():"


def test_all_releases_are_those_that_a_patch_claims(
    root: Path, patches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document, _ = verify_json(capsys, "--patches", str(patches), "--all-releases")
    assert (code, states(document)) == (0, {"0.19.0": "applies", "0.20.0": "applies", "0.21.0": "applies"})


def test_a_release_that_no_patch_claims_needs_none(
    root: Path, patches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document, _ = verify_json(capsys, "--patches", str(patches), "--release", "0.18.0")
    assert (code, states(document)) == (0, {"0.18.0": "not-needed"})
    assert document["results"][0]["files"] == []


@pytest.mark.parametrize(
    ("wanted", "releases"),
    [
        (["0.20.0"], ["0.20.0"]),
        (["0.21.0", "0.19.0"], ["0.19.0", "0.21.0"]),
        (["0.18.0..0.20.0"], ["0.18.0", "0.19.0", "0.20.0"]),
        ([">=0.20"], ["0.20.0", "0.21.0"]),
        (["0.21.0rc1"], ["0.21.0rc1"]),
    ],
)
def test_releases_come_in_order_whatever_order_they_were_asked_in(
    wanted: list[str], releases: list[str], root: Path, patches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [word for one in wanted for word in ("--release", one)]
    _, document, _ = verify_json(capsys, "--patches", str(patches), *options)
    assert list(states(document)) == releases


@pytest.mark.parametrize("version", ["0.18.2rc1.dev45+gabc", "0.33.0rc1", "unknown", "0.20.0.dev1"])
def test_an_unpublished_build_is_decided_by_content_whatever_its_number_says(
    version: str, patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = fake.write_tree(tmp_path / "tree", version=version)
    _, document, _ = verify_json(capsys, "--patches", str(patches), "--tree", str(tree))
    assert states(document) == {str(tree): "applies"}


def test_a_patch_that_is_refused_is_invalid_and_the_others_are_still_decided(
    patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = fake.write_patch(patches, "outside", path="vllm/v1/core.py")
    (bad / "0.19.diff").write_text((bad / "0.19.diff").read_text().replace("vllm/v1", "../vllm/v1"))
    tree = fake.write_tree(tmp_path / "tree")
    code, document, _ = verify_json(capsys, "--patches", str(patches), "--tree", str(tree))
    assert code == 5
    assert {row["patch"]: row["state"] for row in document["results"]} == {
        "outside": "invalid",
        "right-value": "applies",
    }
    (refused,) = (row for row in document["results"] if row["patch"] == "outside")
    assert refused["variant"] is None
    assert "../vllm/v1/core.py" in refused["files"][0]["detail"]


def test_an_invalid_patch_that_is_left_alone_with_no_release_is_an_error(
    root: Path, patches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = fake.write_patch(patches, "outside", path="vllm/v1/core.py")
    (bad / "0.19.diff").write_text("@@ -1 +9,9 @@\n+x\n")
    assert run(["patch", "verify", "outside", "--patches", str(patches), "--all-releases"]) == 2
    assert "0.19.diff" in capsys.readouterr().err


def test_a_patch_is_decided_on_what_it_needs(patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = fake.write_patch(
        patches, "second", old='patched"  # by right-value', new="twice", more="needs: [right-value]\n"
    )
    diff = (second / "0.19.diff").read_text().replace('by right-value"', "by right-value")
    (second / "0.19.diff").write_text(diff)
    tree = fake.write_tree(tmp_path / "tree")
    code, document, _ = verify_json(capsys, "second", "--patches", str(patches), "--tree", str(tree))
    assert (code, [row["patch"] for row in document["results"]]) == (0, ["second"])
    assert document["results"][0]["state"] == "drifted"  # the known places of `stock` are no places of `twice`


@pytest.mark.parametrize(("need", "said"), [("nothing", "unknown patch nothing"), ("right-value", "needs itself")])
def test_a_need_that_cannot_be_met_makes_the_patch_invalid(
    need: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.write_patch(tmp_path / "patches", more=f"needs: [{need}]\n")
    tree = fake.write_tree(tmp_path / "tree")
    code, document, _ = verify_json(capsys, "--patches", str(tmp_path / "patches"), "--tree", str(tree))
    assert (code, states(document)) == (5, {str(tree): "invalid"})
    assert said in document["results"][0]["files"][0]["detail"]


def test_a_conflict_of_a_patch_that_profiles_only_list_as_optional_is_no_failure(
    patches: Path, tmp_path: Path, profiles: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the user's own profiles one lists it."""
    monkeypatch.setenv("GEMMASPEC_PROFILES", str(profiles))
    (profiles / "mine.yaml").write_text("extends: tiny-cpu\nname: mine\npatches: {optional: [right-value]}\n")
    tree = fake.write_tree(tmp_path / "tree", core=OTHER)
    code, document, _ = verify_json(capsys, "--patches", str(patches), "--tree", str(tree))
    assert (code, document["ok"], document["results"][0]["required"]) == (0, True, False)


def test_trees_that_cannot_be_read_leave_the_others_and_exit_with_4(
    root: Path, patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document, said = verify_json(
        capsys, "--patches", str(patches), "--release", "0.20.0", "--tree", str(tmp_path / "none")
    )
    assert (code, document["ok"], states(document)) == (
        4,
        False,
        {"0.20.0": "applies", str(tmp_path / "none"): "unread"},
    )
    assert "does not contain a vllm/ package" in document["results"][-1]["detail"]
    assert f"cannot read tree {tmp_path / 'none'}" in said


def test_a_conflict_counts_more_than_a_tree_that_cannot_be_read(
    patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = fake.write_tree(tmp_path / "tree", core=OTHER)
    options = ["--patches", str(patches), "--tree", str(tmp_path / "none"), "--tree", str(tree)]
    assert verify_json(capsys, *options)[0] == 5


def test_offline_the_cache_answers_for_what_it_has_and_one_sentence_for_the_rest(
    root: Path, patches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verify_json(capsys, "--patches", str(patches), "--release", "0.20.0")
    shutil.rmtree(root / "simple")
    fake.forget_index()
    code, document, said = verify_json(capsys, "--patches", str(patches), "--all-releases")
    assert (code, states(document)) == (4, {"0.20.0": "applies", "0.19.0": "unread", "0.21.0": "unread"})
    (sentence,) = (line for line in said.splitlines() if "not read" in line)
    assert "vllm 0.19.0, vllm 0.21.0" in sentence


def test_without_a_network_and_a_cache_it_is_one_sentence_and_exit_4(
    monkeypatch: pytest.MonkeyPatch, patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.use_index(monkeypatch, tmp_path)
    code, document, said = verify_json(capsys, "--patches", str(patches), "--all-releases")
    assert (code, document["ok"]) == (4, False)
    assert states(document) == {"all": "unread"}
    assert "cannot find a released wheel of vllm" in said


def test_without_trees_the_claimed_releases_are_meant_and_docker_need_not_be_there(
    root: Path, patches: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{root}/none.sock")
    code, document, said = verify_json(capsys, "--patches", str(patches))
    assert (code, list(states(document))) == (0, ["0.19.0", "0.20.0", "0.21.0"])
    assert "did not inspect images: docker is not answering" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["right-valu", "--patches", "{patches}"], "did you mean right-value"),
        (["--patches", "{patches}/none"], "the patch folder"),
        (["--patches", "{patches}", "--release", "newest"], "must be like 0.26.0"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    arguments: list[str], said: str, root: Path, patches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["patch", "verify", *(word.format(patches=patches) for word in arguments)])
    assert code == 2
    assert said in capsys.readouterr().err


def test_a_verdict_is_remembered_until_the_patch_the_files_or_the_launcher_change(
    patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decided: list[str] = []
    decide = launch.decide_patch

    def counted(patch: launch.Patch, *rest: Any) -> launch.PatchResult:
        decided.append(patch.id)
        return decide(patch, *rest)

    monkeypatch.setattr(launch, "decide_patch", counted)
    tree = fake.write_tree(tmp_path / "tree")
    options = ("--patches", str(patches), "--tree", str(tree))
    first = verify_json(capsys, *options)
    assert (verify_json(capsys, *options), len(decided)) == (first, 1)
    (tree / "vllm/v1/core.py").write_text(OTHER)
    assert states(verify_json(capsys, *options)[1]) == {str(tree): "conflict"}
    diff = patches / "right-value/0.19.diff"
    diff.write_text(diff.read_text().replace("stock", "something else"))
    assert states(verify_json(capsys, *options)[1]) == {str(tree): "drifted"}
    assert len(decided) == 3
    monkeypatch.setattr(verdicts, "_engine", lambda: "another launcher")
    verify_json(capsys, *options)
    assert len(decided) == 4


def test_a_spoiled_memory_is_decided_again(
    patches: Path, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = fake.write_tree(tmp_path / "tree")
    options = ("--patches", str(patches), "--tree", str(tree))
    first = verify_json(capsys, *options)
    (kept,) = (cache / "verdicts").iterdir()
    for spoiled in (b"", b"{", b"[]", b'{"state": "applies"}', b'{"files": [{"expected": [], "found": []}]}'):
        kept.write_bytes(spoiled)
        assert verify_json(capsys, *options) == first


def cell(patch: str, place: TreeSource, state: str, *, vllm: str = "0.20.0") -> PatchOnTree:
    file = FileVerdict(
        path="vllm/v1/core.py", state=state, line=15, detail="the old lines are not in value",
        expected=("def value():", '    return "stock"'), found=("def value():", '    return "[red]other"'),
    )  # fmt: skip
    verdict = PatchVerdict(patch=patch, state=state, variant="0.19", files=(file,))
    return PatchOnTree(place=place, vllm=vllm, verdict=verdict, required=True)


def release(number: str) -> TreeSource:
    return TreeSource(kind="release", ref=number)


def test_the_table_has_a_letter_for_each_state_and_explains_it(snapshot: SnapshotAssertion) -> None:
    places = [release(f"0.{minor}.{index}") for minor, index in ((9, 0), (19, 0), (19, 1), (20, 0), (21, 0))]
    places += [
        TreeSource(kind="image", ref="vllm/vllm-openai:cu130-nightly"),
        TreeSource(kind="running", ref="tiny-cpu"),
    ]
    some = [cell("right-value", place, state) for place, state in zip(places, matrix.LETTERS, strict=False)]
    more = [cell("a-longer-name", places[1], "invalid")]
    assert "\n".join(matrix.lines([*some, *more], width=200)) == snapshot


def test_a_narrow_terminal_gets_the_table_in_blocks_that_fit(snapshot: SnapshotAssertion) -> None:
    cells = [cell("right-value", release(f"0.{minor}.0"), "applies") for minor in range(19, 34)]
    lines = list(matrix.lines(cells, width=40))
    assert max(len(line) for line in lines) <= 40
    assert "\n".join(lines) == snapshot


def test_colours_take_no_room_in_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [cell("right-value", release(f"0.{minor}.0"), "applies") for minor in range(19, 28)]
    monkeypatch.setattr(output, "wants_colour", lambda _: True)
    (row,) = [line for line in matrix.lines(cells, width=40) if line.startswith("right-value")]
    assert output.visible(output.fitted(row, 40)).replace("\x1b[32m", "").replace("\x1b[0m", "") == (
        "right-value  a  a  a  a  a  a  a  a  a"
    )


def test_no_two_states_share_a_letter() -> None:
    letters = [letter for letter, *_ in matrix.LETTERS.values()]
    assert len({letter.lower() for letter in letters}) == len(letters)
    assert all(letter.islower() is (state in launch.FITS) for state, (letter, *_) in matrix.LETTERS.items())


def test_nothing_but_plain_text_goes_into_a_pipe_and_hostile_text_is_no_markup(
    patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = fake.write_tree(tmp_path / "tree", core=CORE.replace('"stock"', '"[red]\\x1b]0;x"  # \x9b31m'))
    assert run(["patch", "verify", "--patches", str(patches), "--tree", str(tree)]) == 5
    out = capsys.readouterr().out
    assert '    return "[red]' in out
    assert "\x1b" not in out
    assert "\x9b" not in out


def test_a_text_of_several_lines_is_explained_in_as_many(patches: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = patches / "right-value" / "patch.yaml"
    file.write_text(re.sub("^hole: .*", "hole: |\n  it says stock\n  and dies", file.read_text(), flags=re.MULTILINE))
    assert run(["patch", "explain", "right-value", "--patches", str(patches)]) == 0
    assert "The bug\n  it says stock\n  and dies\n\nWhere it is\n" in capsys.readouterr().out


@pytest.mark.network
def test_the_shipped_patches_fit_every_release_they_claim_and_little_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, document, said = verify_json(capsys, "--all-releases")
    assert code == 0
    assert len({row["tree"]["ref"] for row in document["results"]}) >= 21
    assert {row["state"] for row in document["results"]} <= {"applies", "superseded", "not-needed"}
    assert "the whole wheels have" in said
    again, same, silent = verify_json(capsys, "--all-releases")
    assert (again, same, silent) == (0, document, "")


def test_a_conflict_with_a_release_names_the_rebase() -> None:
    tree = TreeSource(kind="tree", ref="/somewhere")
    cells = [
        cell("right-value", place, state) for place, state in ((release("0.21.0"), "conflict"), (tree, "conflict"))
    ]
    cells.append(cell("right-value", release("0.20.0"), "invalid"))
    text = [line.strip() for line in matrix.misfits(cells)]
    assert [line for line in text if line.startswith("next:")] == [
        "next: gemmaspec patch rebase right-value --release 0.21.0",
        "next: gemmaspec patch rebase right-value --tree /somewhere",
    ]
