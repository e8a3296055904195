"""Reading a few files of released wheels."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.run.trees.listing import published
from gemmaspec.run.trees.released import Releases
from gemmaspec.run.trees.tree import Tree, Unreadable
from tests.support import vllm_trees as fake
from tests.support.launching import CORE

WANTED = ["vllm/v1/core.py", "vllm/v1/gone.py"]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    yield from fake.own_cache(monkeypatch, tmp_path / "cache")


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    fake.use_index(monkeypatch, fake.write_index(tmp_path))
    return tmp_path


def opened(releases: Releases, *versions: str) -> dict[str, Tree | Unreadable]:
    return {tree.place.ref: tree for tree in releases.open(versions, lambda _: WANTED)}


def test_the_wanted_files_are_read_and_what_is_not_there_is_none(root: Path) -> None:
    trees = opened(Releases(published()), *fake.RELEASES)
    assert trees.keys() == set(fake.RELEASES)
    tree = trees["0.20.0"]
    assert isinstance(tree, Tree)
    assert (tree.vllm, tree.files) == ("0.20.0", {"vllm/v1/core.py": CORE.encode(), "vllm/v1/gone.py": None})


def test_what_was_read_once_needs_no_index_and_no_wheel(root: Path) -> None:
    listing = published()
    first = opened(Releases(listing), *fake.RELEASES)
    shutil.rmtree(root / "simple")
    for wheel in root.glob("*.whl"):
        wheel.unlink()
    fake.forget_index()
    releases = Releases(listing)
    assert opened(releases, *fake.RELEASES) == first
    assert releases.bytes_received == 0


def test_the_cache_is_by_the_sha256_of_the_wheel(root: Path, cache: Path) -> None:
    listing = published()
    opened(Releases(listing), "0.20.0")
    kept = [file.relative_to(cache / "wheels") for file in (cache / "wheels").rglob("*") if file.is_file()]
    folder = listing.wheels["0.20.0"]
    assert {str(path) for path in kept} == {f"{folder}/vllm/v1/core.py", f"{folder}/vllm/v1/gone.py.absent"}


def test_a_wheel_that_cannot_be_read_spoils_no_other(root: Path) -> None:
    listing = published()
    (root / "vllm-0.20.0-py3-none-any.whl").write_bytes(b"no zip")
    trees = opened(Releases(listing), "0.19.0", "0.20.0")
    assert isinstance(trees["0.19.0"], Tree)
    broken = trees["0.20.0"]
    assert isinstance(broken, Unreadable)
    assert "cannot read vllm-0.20.0-py3-none-any.whl" in broken.error.message


def test_a_wheel_that_was_replaced_since_the_listing_is_not_mixed_with_the_old_one(root: Path) -> None:
    listing = published()
    fake.write_index(root, {"0.20.0": "other = 1\n"})
    fake.forget_index()
    broken = opened(Releases(listing), "0.20.0")["0.20.0"]
    assert isinstance(broken, Unreadable)
    assert "changed since" in broken.error.message


def test_without_an_index_each_release_says_so(root: Path) -> None:
    listing = published()
    shutil.rmtree(root / "simple")
    fake.forget_index()
    trees = opened(Releases(listing), "0.19.0", "0.20.0")
    assert all(isinstance(tree, Unreadable) for tree in trees.values())


def test_a_bug_in_a_thread_reaches_the_one_who_waits(root: Path) -> None:
    class Broken(Releases):
        def _fetch(self, *_: object) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        opened(Broken(published()), "0.19.0")


def test_leaving_half_way_begins_nothing_new(root: Path) -> None:
    begun: list[str] = []
    left = threading.Event()

    class Counted(Releases):
        def _fetch(self, version: str, *rest: Any) -> Any:
            if begun:
                left.wait(30)
            begun.append(version)
            return super()._fetch(version, *rest)

    trees = Counted(published(), threads=1).open(fake.RELEASES, lambda _: WANTED)
    next(trees)
    trees.close()  # type: ignore[attr-defined]
    left.set()
    assert len(begun) < len(fake.RELEASES)


@pytest.mark.network
def test_a_real_wheel_is_read_in_a_small_part() -> None:
    releases = Releases(published())
    (tree,) = releases.open(["0.33.0"], lambda _: ["vllm/v1/core/kv_cache_planning.py", "vllm/nothing.py"])
    assert isinstance(tree, Tree)
    assert b"def is_kv_cache_spec_uniform" in (tree.read("vllm/v1/core/kv_cache_planning.py") or b"")
    assert tree.read("vllm/nothing.py") is None
    assert 0 < releases.bytes_received < releases.bytes_of_wheels / 100
