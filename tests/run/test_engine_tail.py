"""Reading a log while it is written, cut and replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.run.engine import tail


@given(
    text=st.lists(st.sampled_from([b"\n", b"a", b"bc"]), max_size=40).map(b"".join),
    count=st.integers(0, 12),
    block=st.integers(1, 7),
)
def test_the_last_lines_are_those_that_splitting_the_whole_gives(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, count: int, block: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "log"
    file.write_bytes(text)
    found = b"".join(tail.read(file, tail=count, block=block))
    expected = text.splitlines(keepends=True)
    assert found == b"".join(expected[-count:] if count else [])


def test_no_file_is_no_lines(tmp_path: Path) -> None:
    assert list(tail.read(tmp_path / "none", tail=None)) == []
    assert list(tail.read(tmp_path / "none", tail=3, alive=lambda: True)) == []


def test_a_followed_file_may_grow_be_cut_replaced_and_removed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"zero\none\n")

    def events() -> Iterator[bool]:
        yield True
        with log.open("ab") as file:
            file.write(b"grown\n")
        yield True
        log.write_bytes(b"cut\n")
        yield True
        with log.open("ab") as file:
            file.write(b"last words\n")
        log.rename(tmp_path / "log.1")
        log.write_bytes(b"replaced\n")
        yield True
        yield True
        log.unlink()
        yield True
        yield False

    steps = events()
    found = b"".join(tail.read(log, tail=1, alive=lambda: next(steps)))
    assert found == b"one\ngrown\ncut\nlast words\nreplaced\n"


def test_what_is_written_just_before_the_file_is_replaced_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\n")

    def replaced_now(file: IO[bytes], path: Path) -> bool:
        with path.open("ab") as old:
            old.write(b"last words\n")
        path.rename(tmp_path / "log.1")
        path.write_bytes(b"new\n")
        return True

    monkeypatch.setattr(tail, "_replaced", replaced_now)
    steps = iter([True, False])
    assert b"".join(tail.read(log, tail=None, alive=lambda: next(steps))) == b"first\nlast words\nnew\n"


def test_what_was_written_before_the_end_is_still_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"")

    def ends_after_writing() -> bool:
        log.write_bytes(b"last words\n")
        return False

    assert b"".join(tail.read(log, tail=None, alive=ends_after_writing)) == b"last words\n"
