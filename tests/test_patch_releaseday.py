"""`patch release-day`: what a new vLLM breaks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.cli.app import run
from gemmaspec.deploy import releaseday
from gemmaspec.deploy.profiles import shipped_profiles
from gemmaspec.profile.model import Profile
from tests import vllm_trees as fake
from tests.launching import CORE

SHIFTED = CORE.replace("def value():", 'def value():\n    """What it is."""\n    check()')
REWRITTEN = CORE.replace('return "stock"', "return compute()")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    yield from fake.own_cache(monkeypatch, tmp_path / "cache")


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> Profile:
    """The one shipped profile, with the fake package's patch in the place of the real ones."""
    (tiny,) = (one for one in shipped_profiles() if one.name == "tiny-cpu")
    patches = tiny.patches.model_copy(update={"required": ["right-value"], "optional": []})
    changed = tiny.model_copy(update={"patches": patches})
    monkeypatch.setattr(releaseday, "shipped_profiles", lambda: (changed,))
    return changed


def day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], core: str, *more: str
) -> tuple[int, dict[str, Any]]:
    """A day on which 0.22.0 comes out with this core.py."""
    fake.write_patch(tmp_path / "patches")
    fake.use_index(monkeypatch, fake.write_index(tmp_path, {"0.20.0": CORE, "0.21.0": CORE, "0.22.0": core}))
    capsys.readouterr()
    code = run(["patch", "release-day", *more, "--patches", str(tmp_path / "patches"), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_release_on_which_all_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], profile: Profile
) -> None:
    code, found = day(tmp_path, monkeypatch, capsys, CORE)
    assert (code, found["ok"]) == (0, True)
    assert found["tree"] == {"kind": "release", "ref": "0.22.0", "vllm": "0.22.0"}
    assert found["profiles"] == [{"name": "tiny-cpu", "starts": True, "blocked_by": [], "left_out": []}]


def test_a_superseded_patch_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], profile: Profile
) -> None:
    core = CORE.replace('"stock"', '"fixed upstream"')
    code, found = day(tmp_path, monkeypatch, capsys, core, "0.22.0")
    assert (code, found["patches"][0]["state"], found["patches"][0]["rebase"]) == (0, "superseded", None)


def test_what_breaks_is_named_with_the_profile_that_would_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], profile: Profile
) -> None:
    code, found = day(tmp_path, monkeypatch, capsys, REWRITTEN)
    assert (code, found["ok"]) == (5, False)
    assert found["patches"][0]["state"] == "conflict"
    assert found["patches"][0]["rebase"] == {
        "base": "0.21.0",
        "outcome": "by hand",
        "detail": "vllm/v1/core.py: 1 conflicts",
    }
    assert found["profiles"] == [{"name": "tiny-cpu", "starts": False, "blocked_by": ["right-value"], "left_out": []}]


def test_what_a_merge_would_carry_over_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], profile: Profile
) -> None:
    above = CORE.replace("def value():", "def value(some=1):")
    write = fake.write_patch(tmp_path / "patches")
    diff = write / "0.19.diff"
    diff.write_text(
        "--- a/vllm/v1/core.py\n+++ b/vllm/v1/core.py\n@@ -14,3 +14,3 @@\n \n def value():\n"
        '-    return "stock"\n+    return "patched"\n'
    )
    diff.write_text(diff.read_text().replace("@@ -14,3 +14,3 @@\n \n", "@@ -15,2 +15,2 @@\n"))
    core = above.replace('    return "stock"', '    check()\n    more()\n    then()\n    return "stock"')
    fake.use_index(monkeypatch, fake.write_index(tmp_path, {"0.21.0": CORE, "0.22.0": core}))
    assert run(["patch", "release-day", "--patches", str(tmp_path / "patches")]) == 5
    out = capsys.readouterr().out
    assert "right-value: conflict" in out
    assert "a merge from 0.21.0" in out
    assert "tiny-cpu: would NOT start: right-value" in out


@pytest.mark.parametrize(
    ("gone", "outcome", "detail"),
    [
        (["core.py"], "clean", "the code of vllm/v1/core.py is in vllm/v1/deep/down.py now"),
        (
            ["core.py", "deep/down.py"],
            "by hand",
            "nothing in tree {tree} is called value, which was in vllm/v1/core.py",
        ),
    ],
)
def test_code_that_moved_is_found_and_code_that_is_gone_is_by_hand(
    gone: list[str],
    outcome: str,
    detail: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    profile: Profile,
) -> None:
    fake.write_patch(tmp_path / "patches")
    fake.use_index(monkeypatch, fake.write_index(tmp_path, {"0.21.0": CORE}))
    tree = fake.write_tree(tmp_path / "tree", version="0.22.0.dev7+gabc")
    for name in gone:
        (tree / "vllm/v1" / name).unlink()
    options = ["--tree", str(tree), "--patches", str(tmp_path / "patches"), "--json"]
    assert run(["patch", "release-day", *options]) == 5
    found = json.loads(capsys.readouterr().out)
    assert found["tree"] == {"kind": "tree", "ref": str(tree), "vllm": "0.22.0.dev7+gabc"}
    assert found["patches"][0]["state"] == "missing"
    wanted = {"base": "0.21.0", "outcome": outcome, "detail": detail.format(tree=tree)}
    assert found["patches"][0]["rebase"] == wanted


def test_an_optional_patch_that_breaks_is_left_out_and_the_profile_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], profile: Profile
) -> None:
    optional = profile.patches.model_copy(update={"required": [], "optional": ["right-value"]})
    monkeypatch.setattr(releaseday, "shipped_profiles", lambda: (profile.model_copy(update={"patches": optional}),))
    code, found = day(tmp_path, monkeypatch, capsys, REWRITTEN)
    assert code == 0
    assert found["profiles"] == [{"name": "tiny-cpu", "starts": True, "blocked_by": [], "left_out": ["right-value"]}]


def test_a_folder_can_be_looked_at_offline_and_the_merge_is_then_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], profile: Profile
) -> None:
    fake.write_patch(tmp_path / "patches")
    fake.use_index(monkeypatch, tmp_path)
    tree = fake.write_tree(tmp_path / "tree", version="0.22.0", core=REWRITTEN)
    assert run(["patch", "release-day", "--tree", str(tree), "--patches", str(tmp_path / "patches"), "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["patches"][0]["rebase"]["outcome"] == "unknown"


@pytest.mark.parametrize("arguments", [["0.22.0", "--tree", "."], [">=0.20"]])
def test_one_vllm_at_a_time(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: Profile
) -> None:
    fake.write_patch(tmp_path / "patches")
    fake.use_index(monkeypatch, fake.write_index(tmp_path, ["0.21.0", "0.22.0"]))
    assert run(["patch", "release-day", *arguments, "--patches", str(tmp_path / "patches")]) == 2


@pytest.mark.network
def test_the_first_release_after_a_file_moved_would_have_been_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """vLLM 0.33.0 moved is_kv_cache_spec_uniform(); the patch as it was before 0.33.0 is tried on it."""
    import shutil

    from gemmaspec import data

    shutil.copytree(data.PATCHES, tmp_path / "patches")
    folder = tmp_path / "patches/kv-spec-uniform-valueerror"
    (folder / "0.33.diff").unlink()
    (folder / "known.json").unlink()
    text = (folder / "patch.yaml").read_text()
    head, _, rest = text.partition("  - diff: 0.33.diff")
    text = head.replace('">=0.19.0,<0.33"', '">=0.19.0"') + rest[rest.index("superseded:") :]
    (folder / "patch.yaml").write_text(text)
    assert run(["patch", "release-day", "0.33.0", "--patches", str(tmp_path / "patches"), "--json"]) == 5
    found = json.loads(capsys.readouterr().out)
    states = {row["patch"]: row["state"] for row in found["patches"]}
    assert states["kv-spec-uniform-valueerror"] == "conflict"
    starts = {row["name"]: row["starts"] for row in found["profiles"]}
    assert not starts["spark-31b-e2b"]
    assert starts["spark-31b"]
