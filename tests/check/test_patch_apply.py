"""`patch apply`: the overlay that a start would build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.launcher import launch
from tests.support import vllm_trees as fake
from tests.support.launching import CORE, tree_of


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    fake.write_patch(tmp_path / "patches")
    return tmp_path / "patches"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return fake.write_tree(tmp_path / "tree")


def apply(tree: Path, out: Path, *more: str) -> int:
    return run(["patch", "apply", "--tree", str(tree), "--out", str(out), *more])


def test_the_overlay_holds_patched_copies_and_links_to_everything_else(
    tree: Path, patches: Path, tmp_path: Path
) -> None:
    before = tree_of(tree)
    assert apply(tree, tmp_path / "out", "--patches", str(patches)) == 0
    assert '"patched"  # by right-value' in (tmp_path / "out/vllm/v1/core.py").read_text()
    assert (tmp_path / "out/vllm/v1/plain.py").readlink() == tree / "vllm/v1/plain.py"
    assert (tmp_path / "out/vllm/csrc").readlink() == tree / "vllm/csrc"
    assert tree_of(tree) == before, "the tree itself is only read"
    assert {path.name for path in tmp_path.iterdir()} == {"patches", "tree", "out"}


def test_it_is_the_launchers_overlay_entry_for_entry(tree: Path, patches: Path, tmp_path: Path) -> None:
    apply(tree, tmp_path / "out", "--patches", str(patches))
    changed = {"vllm/v1/core.py": (tmp_path / "out/vllm/v1/core.py").read_bytes()}
    (tmp_path / "run").mkdir()
    built = launch.build_overlay(tree / "vllm", tmp_path / "run", changed)
    assert built
    assert tree_of(tmp_path / "out") == tree_of(built)


def test_a_relative_tree_gives_links_that_hold(
    tree: Path, patches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert apply(Path("tree"), Path("deep/out"), "--patches", "patches") == 0
    assert (tmp_path / "deep/out/vllm/v1/plain.py").read_text() == "A = 1\n"


def test_an_overlay_is_replaced(tree: Path, patches: Path, tmp_path: Path) -> None:
    apply(tree, tmp_path / "out", "--patches", str(patches))
    (tmp_path / "out/vllm/v1/core.py").write_text("old")
    assert apply(tree, tmp_path / "out", "--patches", str(patches)) == 0
    assert "by right-value" in (tmp_path / "out/vllm/v1/core.py").read_text()


@pytest.mark.parametrize("kind", ["folder", "empty", "file", "link"])
def test_anything_but_an_overlay_is_not_touched(
    kind: str, tree: Path, patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    elif kind == "link":
        apply(tree, tmp_path / "real", "--patches", str(patches))
        out.symlink_to("real")
    else:
        out.mkdir()
        (out / "mine").write_text("mine") if kind == "folder" else None
    before = tree_of(tmp_path)
    assert apply(tree, out, "--patches", str(patches)) == 2
    assert "is not an overlay; it was left unchanged" in capsys.readouterr().err
    assert tree_of(tmp_path) == before


def test_an_overlay_inside_the_package_is_refused(tree: Path, patches: Path, tmp_path: Path) -> None:
    before = tree_of(tree)
    assert apply(tree, tree / "vllm/v1/out", "--patches", str(patches)) == 2
    assert tree_of(tree) == before


def test_one_conflict_and_nothing_is_written(
    tree: Path, patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.write_patch(patches, "another", old="not there", path="vllm/v1/deep/down.py")
    before = tree_of(tmp_path)
    assert apply(tree, tmp_path / "out", "--patches", str(patches)) == 5
    said = capsys.readouterr().err
    assert "another does not fit vllm 0.20.0; nothing was written" in said
    assert "vllm/v1/deep/down.py:15: conflict: the old lines are not in value" in said
    assert tree_of(tmp_path) == before


def test_a_file_that_is_a_link_out_of_the_tree_is_refused(tree: Path, patches: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(CORE)
    (tree / "vllm/v1/core.py").unlink()
    (tree / "vllm/v1/core.py").symlink_to(tmp_path / "elsewhere.py")
    assert apply(tree, tmp_path / "out", "--patches", str(patches)) == 4
    assert not (tmp_path / "out").exists()


def test_when_nothing_needs_a_patch_there_is_no_overlay_and_no_old_one(
    tree: Path, patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    apply(tree, tmp_path / "out", "--patches", str(patches))
    (tree / "vllm/v1/core.py").write_text(CORE.replace('"stock"', '"fixed upstream"'))
    capsys.readouterr()
    assert apply(tree, tmp_path / "out", "--patches", str(patches), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["out"], document["changed"]) == (None, [])
    assert document["patches"] == [{"patch": "right-value", "state": "superseded", "variant": None}]
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    tree: Path, patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(launch, "mirror", full)
    before = tree_of(tmp_path)
    assert apply(tree, tmp_path / "out", "--patches", str(patches)) == 4
    assert "no space left" in capsys.readouterr().err
    assert tree_of(tmp_path) == before


def test_patches_and_a_profile_do_not_go_together(tree: Path, tmp_path: Path) -> None:
    assert apply(tree, tmp_path / "out", "draft-text-only", "--profile", "tiny-cpu") == 2


def test_a_patch_brings_what_it_needs_and_a_profiles_order_counts(tree: Path, patches: Path, tmp_path: Path) -> None:
    more = "needs: [right-value]\n"
    second = fake.write_patch(patches, "a-second", old='patched"  # by right-value', new="twice", more=more)
    diff = second / "0.19.diff"
    diff.write_text(diff.read_text().replace('by right-value"', "by right-value"))
    assert apply(tree, tmp_path / "out", "a-second", "--patches", str(patches)) == 0
    assert 'return "twice"  # by a-second' in (tmp_path / "out/vllm/v1/core.py").read_text()


@pytest.mark.network
def test_a_shipped_profile_is_applied_to_a_real_release(tmp_path: Path) -> None:
    from gemmaspec.run.index.wheels import read_from_wheel

    paths = [
        "vllm/v1/core/kv_cache_utils.py",
        "vllm/v1/worker/utils.py",
        "vllm/v1/spec_decode/llm_base_proposer.py",
        "vllm/utils/cpu_triton_utils.py",
        "vllm/v1/sample/ops/topk_topp_sampler.py",
    ]
    files = read_from_wheel("vllm", "0.32.0", [*paths, "vllm/__init__.py", "vllm/_version.py"])
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    assert apply(tmp_path, tmp_path / "out", "--profile", "tiny-cpu") == 0
    for path in paths:
        compile((tmp_path / "out" / path).read_bytes(), path, "exec")
        assert not (tmp_path / "out" / path).is_symlink()
