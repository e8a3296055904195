"""FAKE vllm packages as trees: folders, wheels in a local index, and patches of theirs. Real ones are marked network."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from gemmaspec.run.index import wheels
from tests.support import placed
from tests.support.launching import CORE, write_package
from tests.support.launching import tree_of_function as tree_of

PATCH = """\
id: {id}
title: value() says what it should
hole: value() says stock, and the engine dies with ValueError.
required_by: {{methods: [draft_model], when: always}}
runner: any
speculation_only: false
variants:
  - {{diff: 0.19.diff, versions: ">={low}", scopes: {{{path}: [{scope}]}}}}
superseded:
  - {{path: vllm/v1/core.py, scope: value, release: 0.22.0, tree: FIXED_TREE}}
upstream: []
drop_when: value() is right
licence: Apache-2.0
author: somebody
{more}"""
PATCH = PATCH.replace("FIXED_TREE", tree_of(CORE.replace('"stock"', '"fixed upstream"'), "value"))
DIFF = """\
--- a/{path}
+++ b/{path}
@@ -15,2 +15,2 @@
 def value():
-    return "{old}"
+    return "{new}"  # by {id}
"""
RELEASES = ("0.18.0", "0.19.0", "0.20.0", "0.21.0rc1", "0.21.0")


def write_patch(
    folder: Path,
    id_: str = "right-value",
    *,
    old: str = "stock",
    new: str = "patched",
    path: str = "vllm/v1/core.py",
    scope: str = "value",
    low: str = "0.19.0",
    more: str = "",
) -> Path:
    """A patch folder; its diff changes what value() returns."""
    place = folder / id_
    place.mkdir(parents=True)
    (place / "patch.yaml").write_text(PATCH.format(id=id_, path=path, scope=scope, low=low, more=more))
    (place / "0.19.diff").write_text(DIFF.format(path=path, old=old, new=new, id=id_))
    placed.record(place, {path: CORE.replace('"stock"', f'"{old}"')})
    return place


def write_tree(root: Path, *, version: str = "0.20.0", core: str = CORE) -> Path:
    """A folder that holds the fake vllm/."""
    write_package(root / "vllm", version=version)
    (root / "vllm/v1/core.py").write_text(core)
    return root


def write_index(root: Path, releases: Mapping[str, str] | Sequence[str] = RELEASES) -> Path:
    """A package index on disk with a wheel of the fake vllm for each release, and its sha256; release -> core.py."""
    page = root / "simple" / "vllm" / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    links = []
    cores = releases if isinstance(releases, Mapping) else dict.fromkeys(releases, CORE)
    for release, core in cores.items():
        wheel = root / f"vllm-{release}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("vllm/__init__.py", "")
            archive.writestr("vllm/_version.py", f"__version__ = {release!r}\n")  # no two wheels are the same
            archive.writestr("vllm/v1/core.py", core)
        sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
        links.append(f'<a href="../../{wheel.name}#sha256={sha256}">{wheel.name}</a>')
    page.write_text("\n".join(links))
    return root


def use_index(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Make pip's settings name that index alone; pip itself, which takes most of a second, is not asked for them."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    url = (root / "simple").as_uri()
    monkeypatch.setenv("PIP_INDEX_URL", url)
    monkeypatch.setattr(wheels, "_pip_config_list", lambda: [f":env:.index-url={url!r}"])
    forget_index()


def forget_index() -> None:
    """What one process remembers of the index."""
    wheels.pip_settings.cache_clear()
    wheels.answers.clear()


def own_cache(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Path]:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    forget_index()
    yield folder / "gemmaspec"
    forget_index()


def tar_of(files: Mapping[str, bytes | tarfile.TarInfo]) -> bytes:
    """A tar for `docker import`; a TarInfo is taken as it is (links, devices, fifos)."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                content.name = name
                archive.addfile(content)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return data.getvalue()
