"""FAKE releases of vllm with files of a test's own, and what carries patches from one to another."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support import placed
from tests.support import vllm_trees as fake
from tests.support.launching import tree_of_function

OLD = """\
import os


def value(x):
    total = 0
    for one in x:
        total += one
    if total:
        return "stock"
    return None


def other(x):
    if x:
        return "stock"
    return None
"""
DIFF = """\
--- a/vllm/v1/core.py
+++ b/vllm/v1/core.py
@@ -6,4 +6,5 @@
     for one in x:
         total += one
     if total:
-        return "stock"
+        # by us
+        return "patched"
"""
TEXT = """\
# what somebody wrote about it
id: right-value
title: value() says what it should
hole: value() says stock, and the engine dies with ValueError.
required_by: {methods: [draft_model], when: always}
runner: any
speculation_only: false
variants:  # from old to new
  - {diff: 0.19.diff, versions: ">=0.19.0", scopes: {vllm/v1/core.py: [value]}}
superseded:
  - {path: vllm/v1/core.py, scope: value, release: 0.22.0, tree: FIXED_TREE}
upstream: []
drop_when: value() is right
licence: Apache-2.0
author: somebody
"""
TEXT = TEXT.replace("FIXED_TREE", tree_of_function(OLD.replace("stock", "fixed upstream"), "value"))
CLEAN = OLD.replace("for one in x:", "for one in sorted(x):")
"""The old diff's context is gone; between its line and ours is one that is the same, so that a merge is clean."""
TORN = OLD.replace('return "stock"', 'return "stocked"', 1)
"""Our very line is another."""


def write_releases(root: Path, releases: Mapping[str, Mapping[str, str]]) -> None:
    """A package index on disk: release -> path -> text."""
    page = root / "simple" / "vllm" / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    links = []
    for release, files in releases.items():
        wheel = root / f"vllm-{release}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, text in {"vllm/__init__.py": "", **files}.items():
                archive.writestr(path, text)
        sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
        links.append(f'<a href="../../{wheel.name}#sha256={sha256}">{wheel.name}</a>')
    page.write_text("\n".join(links))


def use_releases(monkeypatch: pytest.MonkeyPatch, root: Path, **cores: str | Mapping[str, str]) -> None:
    """Make these the releases there are: v0_20_0="the text of vllm/v1/core.py", or all files by path."""
    releases = {
        name.removeprefix("v").replace("_", "."): {"vllm/v1/core.py": core} if isinstance(core, str) else core
        for name, core in cores.items()
    }
    write_releases(root, releases)
    fake.use_index(monkeypatch, root)


def write_patch(folder: Path, *, text: str = TEXT, diff: str = DIFF, id_: str = "right-value") -> Path:
    """The patch folder."""
    place = folder / id_
    place.mkdir(parents=True)
    (place / "patch.yaml").write_text(text.replace("id: right-value", f"id: {id_}"))
    (place / "0.19.diff").write_text(diff)
    placed.record(place, {"vllm/v1/core.py": OLD})
    return place


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(autouse=True)
def cache(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An empty cache, but for tests that read real wheels."""
    if request.node.get_closest_marker("network"):
        yield
    else:
        yield from (None for _ in fake.own_cache(monkeypatch, tmp_path / "cache"))
