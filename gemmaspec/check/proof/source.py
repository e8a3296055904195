"""The whole Python source of a released vLLM: about 10 MB of a wheel of several hundred MB."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

import requests
from pypi_simple import DistributionPackage
from remotezip import RemoteZipError

from gemmaspec.core import launcher
from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import cache_dir, unwritable
from gemmaspec.core.reasons import reason
from gemmaspec.run.index import wheels
from gemmaspec.run.trees import listing

_GAP: Final = 128 * 1024  # smaller gaps are read too, to save a request; bytes
_SLACK: Final = 1024  # a member's local header: 30 bytes, its name and its extra field
_UNREADABLE: Final = (requests.RequestException, RemoteZipError, zipfile.BadZipFile)


def source_of(version: str) -> Path:
    """Return a folder with vllm/**/*.py of a release, cached by wheel.

    Raise EnvironmentMissing if the wheel is missing or unreadable, or the cache cannot be written.
    """
    sha256 = listing.published().wheels.get(version)
    if not sha256:
        raise EnvironmentMissing(f"the package index lists no wheel of vllm {version} with a sha256")
    folder = cache_dir() / "sources" / sha256
    if not folder.is_dir():
        try:
            _make(folder, wheels.released_wheels(listing.PROJECT)[version])
        except OSError as error:
            raise unwritable(folder, error) from None
    return folder


def _make(folder: Path, wheel: DistributionPackage) -> None:
    """Fill a temporary sibling and rename it, because another process may do the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        with tempfile.TemporaryFile(dir=folder.parent) as copy:
            _copy_parts(wheel, copy)
            _extract(copy, fresh)
        try:
            fresh.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _copy_parts(wheel: DistributionPackage, copy: IO[bytes]) -> None:
    """Copy the needed parts of the wheel into a sparse file."""
    try:
        with wheels.open_session() as session, wheels.opened(wheel.url, session) as archive:
            end_of_members = archive.start_dir
            wanted = [member for member in archive.infolist() if _is_source(member)]
            for begin, end in [*_ranges(wanted, end_of_members), (end_of_members, None)]:
                copy.seek(begin)
                copy.write(_read(wheel.url, session, begin, end))
    except _UNREADABLE as error:
        raise EnvironmentMissing(f"cannot read {wheel.filename}: {reason(error)}") from None


def _is_source(member: zipfile.ZipInfo) -> bool:
    """Return whether a member is a Python file whose path stays inside vllm/."""
    try:
        launcher.check_path(member.filename)
    except ValueError:
        return False
    return member.file_size <= wheels.LARGEST_MEMBER


def _ranges(members: Iterable[zipfile.ZipInfo], limit: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of the file that contain the members; close ones are joined."""
    spans = []
    for member in members:
        begin = member.header_offset
        spans.append((begin, begin + _SLACK + member.compress_size))
    spans.sort()
    while spans:
        begin, end = spans.pop(0)
        while spans and spans[0][0] - end <= _GAP:
            end = max(end, spans.pop(0)[1])
        yield begin, min(end, limit)


def _read(url: str, session: requests.Session, begin: int, end: int | None) -> bytes:
    """Return the bytes from begin to end (None for the rest) of a local or remote file."""
    if path := wheels.local_path(url):
        with path.open("rb") as file:
            file.seek(begin)
            if end is None:
                return file.read()
            return file.read(end - begin)
    last = "" if end is None else end - 1
    answer = session.get(url, headers={"Range": f"bytes={begin}-{last}"}, timeout=wheels.TIMEOUT)
    answer.raise_for_status()
    if answer.status_code != requests.codes.partial_content:
        raise requests.RequestException("the server does not support range requests")
    return answer.content


def _extract(copy: IO[bytes], folder: Path) -> None:
    with zipfile.ZipFile(copy) as archive:
        for member in archive.infolist():
            if _is_source(member):
                archive.extract(member, folder)
