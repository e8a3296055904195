"""Reading a folder that holds vllm/, whoever made it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.trees.folder import open_folder
from gemmaspec.run.trees.tree import LARGEST_FILE
from tests.support import vllm_trees as fake
from tests.support.launching import CORE

WANTED = ["vllm/v1/core.py", "vllm/v1/gone.py", "vllm/v1"]


def test_the_version_is_read_and_not_run(tmp_path: Path) -> None:
    tree = open_folder(fake.write_tree(tmp_path, version="0.33.1.dev45+gabc"), lambda _: WANTED)
    assert tree.vllm == "0.33.1.dev45+gabc"
    assert tree.files == {"vllm/v1/core.py": CORE.encode(), "vllm/v1/gone.py": None, "vllm/v1": None}
    assert (tree.place.kind, tree.place.ref) == ("tree", str(tmp_path))


def test_a_build_without_a_version_is_unknown(tmp_path: Path) -> None:
    fake.write_tree(tmp_path)
    (tmp_path / "vllm/_version.py").unlink()
    assert open_folder(tmp_path, lambda _: []).vllm == "unknown"


def test_a_folder_without_vllm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMissing, match="does not contain a vllm/ package"):
        open_folder(tmp_path, lambda _: WANTED)


def test_whoever_names_the_package_itself_is_told_the_folder_above(tmp_path: Path) -> None:
    fake.write_tree(tmp_path)
    with pytest.raises(EnvironmentMissing) as error:
        open_folder(tmp_path / "vllm", lambda _: WANTED)
    assert error.value.hint == f"name its parent folder: {tmp_path}"


def test_a_link_that_stays_inside_is_followed(tmp_path: Path) -> None:
    fake.write_tree(tmp_path)
    (tmp_path / "vllm/v1/gone.py").symlink_to("core.py")
    assert open_folder(tmp_path, lambda _: WANTED).read("vllm/v1/gone.py") == CORE.encode()


def test_files_that_are_all_links_into_one_cache_are_read(tmp_path: Path) -> None:
    """As `uv pip install --link-mode symlink` makes them."""
    fake.write_tree(tmp_path / "cache/archive-v0/xyz")
    for file in (tmp_path / "cache/archive-v0/xyz").rglob("*.py"):
        linked = tmp_path / "tree" / file.relative_to(tmp_path / "cache/archive-v0/xyz")
        linked.parent.mkdir(parents=True, exist_ok=True)
        linked.symlink_to(file)
    assert open_folder(tmp_path / "tree", lambda _: WANTED).read("vllm/v1/core.py") == CORE.encode()
    (tmp_path / "tree/vllm/v1/core.py").unlink()
    (tmp_path / "tree/vllm/v1/core.py").symlink_to(tmp_path / "cache/archive-v0/xyz/vllm/__init__.py")
    with pytest.raises(EnvironmentMissing, match="is a link that leaves"):  # another file of the cache
        open_folder(tmp_path / "tree", lambda _: WANTED)


def test_a_link_that_leads_out_is_refused_by_name(tmp_path: Path) -> None:
    fake.write_tree(tmp_path / "tree")
    (tmp_path / "secret").write_text("a = 1\n")
    (tmp_path / "tree/vllm/v1/core.py").unlink()
    (tmp_path / "tree/vllm/v1/core.py").symlink_to("../../../secret")
    with pytest.raises(EnvironmentMissing, match=r"vllm/v1/core\.py is a link that leaves"):
        open_folder(tmp_path / "tree", lambda _: WANTED)


def test_a_package_that_is_a_link_out_is_refused(tmp_path: Path) -> None:
    fake.write_tree(tmp_path / "elsewhere")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/vllm").symlink_to(tmp_path / "elsewhere/vllm")
    with pytest.raises(EnvironmentMissing, match="is a link that leaves"):
        open_folder(tmp_path / "tree", lambda _: WANTED)


def test_a_fifo_does_not_hold_anything_up(tmp_path: Path) -> None:
    fake.write_tree(tmp_path)
    (tmp_path / "vllm/v1/core.py").unlink()
    os.mkfifo(tmp_path / "vllm/v1/core.py")
    with pytest.raises(EnvironmentMissing, match="must be a regular file"):
        open_folder(tmp_path, lambda _: WANTED)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    fake.write_tree(tmp_path)
    with (tmp_path / "vllm/v1/core.py").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    with pytest.raises(EnvironmentMissing, match="at most"):
        open_folder(tmp_path, lambda _: WANTED)
