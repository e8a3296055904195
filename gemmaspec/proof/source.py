"""The whole Python source of a released vLLM: about 10 MB of a wheel of several hundred."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

import requests
from pypi_simple import DistributionPackage

from gemmaspec import index
from gemmaspec.errors import EnvironmentMissing
from gemmaspec.files import unwritable
from gemmaspec.launcher import launch

_GAP: Final = 128 * 1024  # bytes that are rather read than asked for again
_SLACK: Final = 1024  # a member's local header: 30 bytes, its name and its extra field


def source_of(version: str) -> Path:
    """A folder with vllm/**/*.py of a release, made once for each wheel and kept in the cache.

    Raises EnvironmentMissing when the wheel cannot be found, read or kept.
    """
    wheel = index.wheel_of("vllm", version)
    sha256 = wheel.digests.get("sha256")
    if not sha256:
        raise EnvironmentMissing(f"the index states no sha256 for {wheel.filename}, so it cannot be kept")
    folder = index.cache_dir() / "sources" / sha256
    if not folder.is_dir():
        try:
            _make(folder, wheel)
        except OSError as error:
            raise unwritable(folder, error) from None
    return folder


def _make(folder: Path, wheel: DistributionPackage) -> None:
    """Fill a temporary sibling and rename it: another process may do the same at this moment."""
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
    """The wheel as a sparse file: where nothing is wanted there is a hole."""
    try:
        with index.open_session() as session, index.opened(wheel.url, session) as archive:
            size = archive.start_dir
            wanted = [member for member in archive.infolist() if _is_source(member)]
            for begin, end in [*_ranges(wanted, size), (size, None)]:
                copy.seek(begin)
                copy.write(_read(wheel.url, session, begin, end))
    except (requests.RequestException, zipfile.BadZipFile) as error:
        raise EnvironmentMissing(f"{wheel.filename} could not be read: {type(error).__name__}: {error}") from None


def _is_source(member: zipfile.ZipInfo) -> bool:
    try:
        launch.check_path(member.filename)
    except ValueError:
        return False
    return True


def _ranges(members: Iterable[zipfile.ZipInfo], size: int) -> Iterator[tuple[int, int]]:
    """The parts of the file that hold the members, those close together joined."""
    spans = sorted(
        (member.header_offset, member.header_offset + _SLACK + member.compress_size) for member in members
    )
    begin, end = spans[0]
    for start, stop in spans[1:]:
        if start - end > _GAP:
            yield begin, min(end, size)
            begin = start
        end = max(end, stop)
    yield begin, min(end, size)


def _read(url: str, session: requests.Session, begin: int, end: int | None) -> bytes:
    """Bytes begin to end (to the last one without it) of a file somewhere."""
    if folder := index.local_path(url):
        with folder.open("rb") as file:
            file.seek(begin)
            return file.read() if end is None else file.read(end - begin)
    last = "" if end is None else str(end - 1)
    answer = session.get(url, headers={"Range": f"bytes={begin}-{last}"}, timeout=index.TIMEOUT)
    answer.raise_for_status()
    if answer.status_code != requests.codes.partial_content:
        raise requests.RequestException("the server does not answer range requests")
    return answer.content


def _extract(copy: IO[bytes], folder: Path) -> None:
    with zipfile.ZipFile(copy) as archive:
        for member in archive.infolist():
            if _is_source(member):
                archive.extract(member, folder)
