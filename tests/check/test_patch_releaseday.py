"""tools/release_patches.py: what a new vLLM breaks."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import release_names as releasenames
from release_patches import main

from gemmaspec.check.carry.shipped import shipped
from gemmaspec.core import data
from gemmaspec.core.profile.load import Loaded
from gemmaspec.core.releases.facts import newest, rows_of
from gemmaspec.run.trees.reader import FolderReader
from tests.support import vllm_trees as fake
from tests.support.launching import CORE
from tests.support.real import cpu_site

SHIFTED = CORE.replace("def value():", 'def value():\n    """What it is."""\n    check()')
REWRITTEN = CORE.replace('return "stock"', "return compute()")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    yield from fake.own_cache(monkeypatch, tmp_path / "cache")


@pytest.fixture
def profile() -> Loaded:
    """The one shipped profile, with the fake package's patch in the place of the real ones."""
    return with_patches(required=["right-value"], optional=[])


def with_patches(**patches: list[str]) -> Loaded:
    (tiny,) = (one for one in shipped() if one.profile.name == "tiny-cpu")
    changed = tiny.profile.model_copy(update={"patches": tiny.profile.patches.model_copy(update=patches)})
    return dataclasses.replace(tiny, profile=changed)


def day(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    profile: Loaded,
    core: str,
    *more: str,
) -> tuple[int, dict[str, Any]]:
    """A day on which 0.22.0 comes out with this core.py."""
    fake.write_patch(tmp_path / "patches")
    fake.use_index(monkeypatch, fake.write_index(tmp_path, {"0.20.0": CORE, "0.21.0": CORE, "0.22.0": core}))
    capsys.readouterr()
    code = main([*more, "--patches", str(tmp_path / "patches"), "--json"], (profile,))
    return code, json.loads(capsys.readouterr().out)


def test_a_release_on_which_all_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], profile: Loaded
) -> None:
    code, found = day(tmp_path, monkeypatch, capsys, profile, CORE)
    assert (code, found["ok"]) == (0, True)
    assert found["tree"] == {"kind": "release", "ref": "0.22.0", "vllm": "0.22.0"}
    assert found["profiles"] == [{"name": "tiny-cpu", "starts": True, "blocked_by": [], "left_out": [], "findings": []}]


def test_a_superseded_patch_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], profile: Loaded
) -> None:
    core = CORE.replace('"stock"', '"fixed upstream"')
    code, found = day(tmp_path, monkeypatch, capsys, profile, core, "0.22.0")
    assert (code, found["patches"][0]["state"], found["patches"][0]["rebase"]) == (0, "superseded", None)


def test_what_breaks_is_named_with_the_profile_that_would_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], profile: Loaded
) -> None:
    code, found = day(tmp_path, monkeypatch, capsys, profile, REWRITTEN)
    assert (code, found["ok"]) == (5, False)
    assert found["patches"][0]["state"] == "conflict"
    assert found["patches"][0]["rebase"] == {
        "base": "0.21.0",
        "outcome": "by hand",
        "detail": "vllm/v1/core.py: 1 conflict",
    }
    assert found["profiles"] == [
        {"name": "tiny-cpu", "starts": False, "blocked_by": ["right-value"], "left_out": [], "findings": []}
    ]


def test_what_a_merge_would_carry_over_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], profile: Loaded
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
    assert main(["--patches", str(tmp_path / "patches")], (profile,)) == 5
    out = capsys.readouterr().out
    assert "right-value: conflict" in out
    assert "a merge from 0.21.0" in out
    assert "tiny-cpu: would NOT start: right-value" in out


@pytest.mark.parametrize(
    ("gone", "outcome", "detail"),
    [
        (["core.py"], "clean", "the code of vllm/v1/core.py is now in vllm/v1/deep/down.py"),
        (
            ["core.py", "deep/down.py"],
            "by hand",
            "tree {tree} no longer defines value, which was in vllm/v1/core.py",
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
    profile: Loaded,
) -> None:
    fake.write_patch(tmp_path / "patches")
    fake.use_index(monkeypatch, fake.write_index(tmp_path, {"0.21.0": CORE}))
    tree = fake.write_tree(tmp_path / "tree", version="0.22.0.dev7+gabc")
    for name in gone:
        (tree / "vllm/v1" / name).unlink()
    options = ["--tree", str(tree), "--patches", str(tmp_path / "patches"), "--json"]
    assert main([*options], (profile,)) == 5
    found = json.loads(capsys.readouterr().out)
    assert found["tree"] == {"kind": "tree", "ref": str(tree), "vllm": "0.22.0.dev7+gabc"}
    assert found["patches"][0]["state"] == "missing"
    wanted = {"base": "0.21.0", "outcome": outcome, "detail": detail.format(tree=tree)}
    assert found["patches"][0]["rebase"] == wanted


def test_an_optional_patch_that_breaks_is_left_out_and_the_profile_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], profile: Loaded
) -> None:
    optional = with_patches(required=[], optional=["right-value"])
    code, found = day(tmp_path, monkeypatch, capsys, optional, REWRITTEN)
    assert code == 0
    assert found["profiles"] == [
        {"name": "tiny-cpu", "starts": True, "blocked_by": [], "left_out": ["right-value"], "findings": []}
    ]


def test_a_folder_can_be_looked_at_offline_and_the_merge_is_then_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], profile: Loaded
) -> None:
    fake.write_patch(tmp_path / "patches")
    fake.use_index(monkeypatch, tmp_path)
    tree = fake.write_tree(tmp_path / "tree", version="0.22.0", core=REWRITTEN)
    assert main(["--tree", str(tree), "--patches", str(tmp_path / "patches"), "--json"], (profile,)) == 5
    assert json.loads(capsys.readouterr().out)["patches"][0]["rebase"]["outcome"] == "unknown"


@pytest.mark.parametrize("arguments", [["0.22.0", "--tree", "."], [">=0.20"]])
def test_one_vllm_at_a_time(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: Loaded
) -> None:
    fake.write_patch(tmp_path / "patches")
    fake.use_index(monkeypatch, fake.write_index(tmp_path, ["0.21.0", "0.22.0"]))
    assert main([*arguments, "--patches", str(tmp_path / "patches")], (profile,)) == 2


@pytest.mark.network
def test_the_first_release_after_a_file_moved_would_have_been_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """vLLM 0.33.0 moved is_kv_cache_spec_uniform(); the patch as it was before 0.33.0 is tried on it."""
    shutil.copytree(data.PATCHES, tmp_path / "patches")
    folder = tmp_path / "patches/kv-spec-uniform-valueerror"
    (folder / "0.33.diff").unlink()
    (folder / "known.json").unlink()
    text = (folder / "patch.yaml").read_text()
    head, _, rest = text.partition("  - diff: 0.33.diff")
    text = head.replace('">=0.19.0,<0.33"', '">=0.19.0"') + rest[rest.index("superseded:") :]
    (folder / "patch.yaml").write_text(text)
    assert main(["0.33.0", "--patches", str(tmp_path / "patches"), "--json"]) == 5
    found = json.loads(capsys.readouterr().out)
    states = {row["patch"]: row["state"] for row in found["patches"]}
    assert states["kv-spec-uniform-valueerror"] == "conflict"
    starts = {row["name"]: row["starts"] for row in found["profiles"]}
    assert not starts["spark-31b-e2b"]
    assert starts["spark-31b"]


def test_a_vllm_whose_names_cannot_be_read_is_still_judged_by_its_patches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], profile: Loaded
) -> None:
    fake.write_patch(tmp_path / "patches")
    fake.use_index(monkeypatch, tmp_path)
    tree = fake.write_tree(tmp_path / "tree", version="99.0")
    arguments = ["--tree", str(tree), "--patches", str(tmp_path / "patches")]
    assert main([*arguments, "--json"], (profile,)) == 0
    names = json.loads(capsys.readouterr().out)["names"]
    assert not names["read"]
    assert "vllm/entrypoints/cli/serve.py: make_arg_parser is missing" in names["why"]
    assert main(arguments, (profile,)) == 0
    assert "flags, variables and keys were not compared" in capsys.readouterr().err


@pytest.mark.parametrize(("version", "before"), [(None, newest()), ("0.26.1.dev2+gabc", "0.26.0"), ("99.0", newest())])
def test_a_build_is_compared_with_the_release_before_it(
    version: str | None, before: str, tmp_path: Path, profile: Loaded
) -> None:
    """Its files are taken for those of 0.33.0, whose parser and names they would be."""
    fake.write_tree(tmp_path, version=version or "0")
    if not version:
        (tmp_path / "vllm/_version.py").unlink()
    names = releasenames.compare_rows(FolderReader(tmp_path).vllm, rows_of("0.33.0"), [profile], {})
    assert names.before == before
    assert bool(names.gone) == (before != "0.33.0")
    assert set(names.findings) == {"tiny-cpu"}


@pytest.fixture
def next_release(tmp_path: Path) -> Path:
    """The files of an installed vLLM 0.32.0 that release-day reads, as a build of 0.34 that dropped four names."""
    shutil.copytree(cpu_site() / "vllm", tmp_path / "vllm", ignore=_not_python)
    (tmp_path / "vllm/_version.py").write_text("__version__ = '0.34.0.dev5+gabc'\n")
    for file, old, new in [
        ("engine/arg_utils.py", '"--disable-hybrid-kv-cache-manager"', '"--hybrid-kv-cache-manager-off"'),
        ("config/speculative.py", "    draft_tensor_parallel_size: int", "    draft_tp_size: int"),
        ("envs.py", '    "VLLM_ALLOW_LONG_MAX_MODEL_LEN":', '    "VLLM_LONG":'),
        ("tool_parsers/__init__.py", '    "gemma4": (', '    "gemma": ('),
    ]:
        path = tmp_path / "vllm" / file
        text = path.read_text()
        assert text.count(old) == 1, file
        path.write_text(text.replace(old, new))
    return tmp_path


def _not_python(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not (name.endswith(".py") or (Path(folder) / name).is_dir())]


@pytest.mark.real_process
def test_names_that_a_build_dropped_are_named_with_the_profiles_that_use_them(
    next_release: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--tree", str(next_release), "--json"]) == 5
    found = json.loads(capsys.readouterr().out)
    gone = {(one["kind"], one["name"]) for one in found["names"]["gone"]}
    assert {
        ("flags", "--disable-hybrid-kv-cache-manager"),
        ("speculative", "draft_tensor_parallel_size"),
        ("environment", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"),
        ("tool_call_parsers", "gemma4"),
    } <= gone
    days = {one["name"]: one for one in found["profiles"]}
    drafting = {
        (one["code"], one["key"], one["severity"])
        for name in ("spark-31b-e2b", "spark-deckard-31b-e4b")
        for one in days[name]["findings"]
    }
    assert {
        ("GS101", "serve.disable_hybrid_kv_cache_manager", "error"),
        ("GS101", "speculative.draft_tensor_parallel_size", "error"),
        ("GS105", "env.VLLM_ALLOW_LONG_MAX_MODEL_LEN", "warning"),
    } <= drafting
    assert not days["spark-31b-e2b"]["starts"]
    assert {one["key"] for one in days["spark-e2b"]["findings"]} == {"chat.tool_call_parser"}, (
        "it sets no other of them"
    )
    assert main(["--tree", str(next_release)]) == 5
    out = capsys.readouterr().out
    assert "spark-31b-e2b: would NOT start: GS101" in out
    assert "  - flags --disable-hybrid-kv-cache-manager" in out


@pytest.mark.network
def test_a_variable_that_a_release_dropped_is_told_for_the_profile_that_sets_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (spark,) = (one for one in shipped() if one.profile.name == "spark-e2b")
    sets = {**spark.profile.env, "VLLM_TEST_FORCE_FP8_MARLIN": "1"}
    changed = dataclasses.replace(spark, profile=spark.profile.model_copy(update={"env": sets}))
    assert main(["0.29.0", "--json"], (changed,)) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"kind": "environment", "name": "VLLM_TEST_FORCE_FP8_MARLIN"} in found["names"]["gone"]
    findings = [one for profile in found["profiles"] for one in profile["findings"]]
    assert [(one["code"], one["key"]) for one in findings] == [("GS105", "env.VLLM_TEST_FORCE_FP8_MARLIN")]
