"""uv.lock: every package that development needs, from PyPI alone, each file with its hash."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@cache
def packages() -> dict[str, dict[str, Any]]:
    """The packages of uv.lock, without gemmaspec."""
    rows = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    return {row["name"]: row for row in rows if row["name"] != PROJECT["project"]["name"]}


def needed() -> Iterator[Requirement]:
    groups = PROJECT["dependency-groups"].values()
    for text in [*PROJECT["project"]["dependencies"], *(one for group in groups for one in group)]:
        yield Requirement(text)


def test_it_is_that_of_pyproject() -> None:
    for requirement in needed():
        row = packages()[canonicalize_name(requirement.name)]
        assert row["version"] in requirement.specifier, f"{requirement}: run make lock"


def test_every_file_is_pypis_and_has_a_hash() -> None:
    files = 0
    for name, row in packages().items():
        assert row["source"] == {"registry": "https://pypi.org/simple"}, name
        for file in [*([row["sdist"]] if "sdist" in row else []), *row.get("wheels", [])]:
            files += 1
            parts = urlsplit(file["url"])
            assert (parts.scheme, parts.netloc, parts.query) == ("https", "files.pythonhosted.org", ""), file["url"]
            assert file["hash"].startswith("sha256:"), name
            assert len(file["hash"]) == len("sha256:") + 64, name
    assert files > len(packages())
