"""The files of an sdist of vLLM, read as its archive arrives."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import IO

from gemmaspec.run.index import wheels


def members(url: str) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield each file with its path below the archive's folder; it can be read until the next one is asked for."""
    with (
        wheels.open_session() as session,
        session.get(url, stream=True, timeout=wheels.TIMEOUT) as answer,
        tarfile.open(fileobj=answer.raw, mode="r|gz") as archive,
    ):
        answer.raise_for_status()
        for member in archive:
            if member.isfile() and (file := archive.extractfile(member)):
                yield member.name.partition("/")[2], file
