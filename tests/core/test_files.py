"""Reading what lies in the place of a file: never waiting, never more than a bound."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gemmaspec.core.errors import EnvironmentMissing, StartFailed
from gemmaspec.core.files import UnreadableFile, read_regular, write_whole


def test_a_file_is_read_and_a_missing_one_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    assert read_regular(tmp_path / "file", limit=4) == b"text"
    assert read_regular(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("folder", "it is a folder, not a file"),
        ("pipe", "it is a named pipe, not a file"),
        ("link", "it is a link, not a file"),
        ("dangling", "it is a link"),
        ("huge", "it is longer than 1024 bytes"),
        ("device", "it is a link, not a file"),
    ],
)
def test_what_is_no_file_of_a_sensible_size_is_refused(kind: str, why: str, tmp_path: Path) -> None:
    place = tmp_path / "record.json"
    if kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "huge":
        with place.open("wb") as file:
            file.truncate(10 * 1024**3)
    else:
        (tmp_path / "other").write_text("x")
        place.symlink_to({"link": tmp_path / "other", "dangling": tmp_path / "gone", "device": "/dev/zero"}[kind])
    with pytest.raises(UnreadableFile, match=f"cannot read {place}: {why}"):
        read_regular(place, limit=1024)
    if kind == "device":
        with pytest.raises(UnreadableFile, match="it is"):
            read_regular(place, limit=1024, follow=True)


def test_a_link_may_be_followed_where_links_are_usual(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    assert read_regular(tmp_path / "link", follow=True) == b"x"


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json" / "full").mkdir(parents=True)
    with pytest.raises(EnvironmentMissing, match=r"cannot write .*plan\.json: a folder is in its place"):
        write_whole(tmp_path / "plan.json", "{}")
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


def test_an_amended_error_is_of_the_same_kind_and_leaves_the_first_as_it_was(tmp_path: Path) -> None:
    first = UnreadableFile(tmp_path, "it is damaged")
    other = first.amended("two lines", hint="ls")
    assert isinstance(other, UnreadableFile)
    assert (str(other), other.message, other.hint, other.path) == ("two lines", "two lines", "ls", tmp_path)
    assert (first.message, first.hint) == (f"cannot read {tmp_path}: it is damaged", f"ls -ld {tmp_path}")
    coded = StartFailed("a", exit_code=4).amended("b")
    assert (coded.message, coded.exit_code, StartFailed.exit_code) == ("b", 4, 6)
