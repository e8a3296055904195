"""Which releases there are, and which of them `--release` means."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmaspec.core.errors import EnvironmentMissing, UsageError
from gemmaspec.core.files import cache_dir
from gemmaspec.run.trees import listing as listing_of
from gemmaspec.run.trees.listing import Listing, choose, published, select
from tests.support import vllm_trees as fake


def asked_earlier(seconds: float) -> None:
    """Have the kept answer of the index be so much older."""
    file = cache_dir() / "releases" / "vllm.json"
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "asked": kept["asked"] - seconds}))


LISTING = Listing(wheels=dict.fromkeys(("0.19.0", "0.24.0", "0.26.0", "0.27.1", "0.27.1rc1", "0.28.0"), ""))


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    yield from fake.own_cache(monkeypatch, tmp_path / "cache")


@pytest.mark.parametrize(
    ("text", "releases"),
    [
        ("0.26.0", ["0.26.0"]),
        ("0.26", ["0.26.0"]),
        ("0.24.0..0.27.1", ["0.24.0", "0.26.0", "0.27.1"]),
        (">=0.24,<0.27", ["0.24.0", "0.26.0"]),
        ("!=0.19.0,<0.25", ["0.24.0"]),
        ("0.27.1rc1", ["0.27.1rc1"]),
        ("0.99.0", []),
    ],
)
def test_a_release_a_range_and_a_specifier_choose(text: str, releases: list[str]) -> None:
    assert select(text, LISTING) == releases


@pytest.mark.parametrize("text", ["newest", "0.24..", "..0.3", ">=x", "0.26.0;ls", ""])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"must be like 0\.26\.0"):
        select(text, LISTING)


def test_the_index_is_asked_once_a_day(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake.use_index(monkeypatch, fake.write_index(tmp_path, ["0.19.0"]))
    assert published().releases() == ["0.19.0"]
    fake.write_index(tmp_path, ["0.19.0", "0.20.0"])
    fake.forget_index()
    assert published().releases() == ["0.19.0"]
    asked_earlier(listing_of.FRESH_S)
    assert published().releases() == ["0.19.0", "0.20.0"]


def test_a_release_of_today_is_found_although_the_index_was_asked_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake.use_index(monkeypatch, fake.write_index(tmp_path, ["0.19.0"]))
    listing = published()
    fake.write_index(tmp_path, ["0.19.0", "0.20.0"])
    fake.forget_index()
    listing, chosen = choose(["0.20.0"], listing)
    assert chosen == ["0.20.0"]
    assert listing.releases() == ["0.19.0", "0.20.0"]


def test_a_release_that_does_not_exist_is_named_with_the_newest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake.use_index(monkeypatch, fake.write_index(tmp_path, ["0.19.0"]))
    with pytest.raises(EnvironmentMissing, match=r"vllm 9\.9\.9 has no released wheel; the newest is 0\.19\.0"):
        choose(["9.9.9"], published())


def test_without_the_index_the_releases_of_the_last_time_are_used_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake.use_index(monkeypatch, fake.write_index(tmp_path, ["0.19.0"]))
    published()
    shutil.rmtree(tmp_path / "simple")
    fake.forget_index()
    listing = published(refresh=True)
    assert listing.releases() == ["0.19.0"]
    assert "using the releases known on" in listing.note


def test_without_the_index_and_without_a_cache_there_is_one_clear_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake.use_index(monkeypatch, tmp_path)
    with pytest.raises(EnvironmentMissing, match="cannot find a released wheel of vllm"):
        published()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"asked": "x", "wheels": {}}', '{"asked": 1, "wheels": [1]}'])
def test_a_spoiled_cache_is_asked_again(
    text: str, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake.use_index(monkeypatch, fake.write_index(tmp_path, ["0.19.0"]))
    (cache / "releases").mkdir(parents=True)
    (cache / "releases/vllm.json").write_text(text)
    assert published().releases() == ["0.19.0"]
    assert json.loads((cache / "releases/vllm.json").read_text())["wheels"].keys() == {"0.19.0"}
