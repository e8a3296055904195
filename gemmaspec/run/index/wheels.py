"""Released files, found through the user's own pip settings and read partially.

`pip config list` names the indexes and certificates; the only address known here is pip's own default. A wheel is
never downloaded completely: range requests read its directory and the members.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

import requests
import urllib3
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from pypi_simple import (
    PYPI_SIMPLE_ENDPOINT,
    DistributionPackage,
    Link,
    NoSuchProjectError,
    ProjectPage,
    PyPISimple,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)
from remotezip import RemoteZip, RemoteZipError

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.files import cache_dir, keep
from gemmaspec.core.reasons import reason

TIMEOUT: Final = 60.0  # seconds without an answer, per request
LARGEST_MEMBER: Final = 16 * 1024 * 1024  # bytes
RETRIES: Final = 5
"""How often a request is repeated by default: as often as by pip, after its pauses of 0, 0.5, 1, 2 and 4 seconds."""
CUT_OFF: Final = 3
"""How often an answer is asked for whose body broke off; uv asks as often, and pip not again."""
ASK_AGAIN_AFTER: Final = 60.0
"""Seconds for which an unreadable index counts as unreadable, so that one command does not wait for it twice."""
_BUSY: Final = (500, 502, 503, 504, 520, 524, 527)
"""Answers of a server or a proxy after which pip repeats a request; 504 is added, which most proxies give."""
_UNREADABLE: Final = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
    RemoteZipError,
    zipfile.BadZipFile,
    OSError,
)


class _Again(urllib3.Retry):
    """Repeats as pip does, but asks a server that is silent for TIMEOUT once more, and not RETRIES times."""

    def increment(
        self, method: Any = None, url: Any = None, response: Any = None, error: Any = None, *rest: Any, **more: Any
    ) -> Self:
        """Return what is left of the repetitions. Raises MaxRetryError, as the base does, where nothing is."""
        silent = urllib3.exceptions.ReadTimeoutError
        if isinstance(error, silent) and any(isinstance(earlier.error, silent) for earlier in self.history):
            raise error
        return super().increment(method, url, response, error, *rest, **more)


@dataclasses.dataclass(frozen=True)
class _Answer:
    """The files of a project, one sentence about each unreadable location, and when they were read."""

    files: list[DistributionPackage]
    problems: list[str]
    read_at: float  # seconds, time.monotonic


T = TypeVar("T")
answers: Final[dict[str, _Answer]] = {}
"""What the indexes said in this process, by project."""


@functools.cache
def pip_settings() -> dict[str, str]:
    """Return pip's settings by name. The environment overrides a command's section, which overrides [global]."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in _pip_config_list():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in sections:
            sections[section][name] = str(ast.literal_eval(value))
    return sections["global"] | sections["install"] | sections[":env:"]


def simple_index_urls() -> list[str]:
    """Return the package indexes that pip would query, the main one first; default: pip's own default."""
    settings = pip_settings()
    if settings.get("no-index", "").lower() in {"1", "true", "yes", "on"}:
        return []
    main = settings.get("index-url", PYPI_SIMPLE_ENDPOINT)
    return [main, *settings.get("extra-index-url", "").split()]


def open_session() -> requests.Session:
    """Return a session that trusts pip's certificates and repeats a failed request as pip does. The caller closes it.

    The `Retry-After` of a server is ignored, because it could demand any wait.
    """
    again = _Again(
        _retries(),
        backoff_factor=0.25,
        status_forcelist=_BUSY,
        raise_on_status=False,  # so that the caller sees the last answer, and its status
        respect_retry_after_header=False,
    )
    session = requests.Session()
    for scheme in ("https://", "http://"):
        session.mount(scheme, requests.adapters.HTTPAdapter(max_retries=again))
    if certificate := pip_settings().get("cert"):
        session.verify = certificate
    return session


def release_files(project: str, version: str) -> list[DistributionPackage]:
    """Return every file of one release, from all indexes and find-links locations.

    Raise EnvironmentMissing if there is none, with the error of each unreadable location.
    """
    wanted = Version(version)
    answer = _answer(canonicalize_name(project))
    wheels = [file for file in answer.files if _version_of(file) == wanted]
    if wheels:
        return wheels
    raise EnvironmentMissing(
        "\n".join([f"cannot find a released file of {project} {version} ({_searched()})", *answer.problems]),
        hint=f"pip index versions {project}    # gemmaspec uses pip's settings: pip config list",
    )


def read_from_wheel(project: str, version: str, member_paths: Iterable[str]) -> dict[str, bytes]:
    """Return the content of the named members of a release's wheel; missing members are omitted.

    If there are several wheels, the newest build for this machine's processor is read. The content is cached under the
    wheel's sha256. Raise EnvironmentMissing if the wheel is missing or unreadable, ValueError for a path that leaves
    the wheel.
    """
    paths = [_checked(path) for path in member_paths]
    wheel = _wheel(project, version)
    folder = cache_folder(wheel)
    kept = {path: (folder / path).read_bytes() for path in paths if folder and (folder / path).is_file()}
    fetched = read_members(wheel, [path for path in paths if path not in kept])
    if folder:
        for path, content in fetched.items():
            keep(folder / path, content)
    return kept | fetched


def released_wheels(project: str) -> dict[str, DistributionPackage]:
    """Return, for every release with a wheel, the one that pip would choose; by version, as in the index.

    Raise EnvironmentMissing if there is none, with the error of each unreadable location.
    """
    answer = _answer(canonicalize_name(project))
    wheels: dict[str, list[DistributionPackage]] = {}
    for file in answer.files:
        if file.package_type == "wheel" and _version_of(file):
            wheels.setdefault(str(file.version), []).append(file)
    if not wheels:
        raise EnvironmentMissing(
            "\n".join([f"cannot find a released wheel of {project} ({_searched()})", *answer.problems]),
            hint=f"pip index versions {project}    # gemmaspec uses pip's settings: pip config list",
        )
    return {version: max(builds, key=_preference) for version, builds in wheels.items()}


def read_members(
    wheel: DistributionPackage, paths: Sequence[str], session: requests.Session | None = None
) -> dict[str, bytes]:
    """Return members of a wheel, read from its location, without the cache; missing members are omitted.

    Raise EnvironmentMissing if it is unreadable, or a member is larger than LARGEST_MEMBER.
    """
    if not paths:
        return {}

    def read() -> dict[str, bytes]:
        with contextlib.ExitStack() as stack:
            connection = session or stack.enter_context(open_session())
            archive = stack.enter_context(opened(wheel.url, connection))
            there = {info.filename: info for info in archive.infolist() if info.filename in paths}
            if any(info.file_size > LARGEST_MEMBER for info in there.values()):
                raise zipfile.BadZipFile(f"a member is larger than {LARGEST_MEMBER} bytes")
            return {path: archive.read(info) for path, info in there.items()}

    try:
        return _whole(read)
    except _UNREADABLE as error:
        raise EnvironmentMissing(f"cannot read {wheel.filename} from {_shown(wheel.url)}: {reason(error)}") from None


def member_names(wheel: DistributionPackage) -> list[str]:
    """Return the paths of all members of a wheel. Raise EnvironmentMissing if it is unreadable."""
    try:
        with open_session() as session, opened(wheel.url, session) as archive:
            return archive.namelist()
    except _UNREADABLE as error:
        raise EnvironmentMissing(f"cannot read {wheel.filename} from {_shown(wheel.url)}: {reason(error)}") from None


def cache_folder(file: DistributionPackage) -> Path | None:
    """Return the cache folder for parts of a released file; None if the index states no sha256 for it."""
    sha256 = file.digests.get("sha256", "")
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        return None
    return cache_dir() / f"{file.package_type}s" / sha256


def _pip_config_list() -> list[str]:
    """Return the lines of `pip config list`, section.name='value'; without pip, the PIP_ variables in that form."""
    on_path = shutil.which("pip")
    for pip in [[sys.executable, "-m", "pip"], *([[on_path]] if on_path else [])]:
        listed = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=False)
        if listed.returncode == 0:
            return listed.stdout.splitlines()
    variables = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return [f":env:.{name[4:].lower().replace('_', '-')}={value!r}" for name, value in variables.items()]


def _find_links() -> list[str]:
    return pip_settings().get("find-links", "").split()


def _retries() -> int:
    """Return how often pip repeats a request: its own setting, or its default if that is not a number."""
    try:
        return max(0, int(pip_settings().get("retries", RETRIES)))
    except ValueError:
        return RETRIES


def _answer(project: str) -> _Answer:
    """Return all files of a project. An index is read once in a process, and again if it was unreadable a while ago."""
    known = answers.get(project)
    if known and (not known.problems or time.monotonic() - known.read_at < ASK_AGAIN_AFTER):
        return known
    answers[project] = _read_answer(project)
    return answers[project]


def _read_answer(project: str) -> _Answer:
    """Read all files of a project from all indexes and find-links locations."""
    files: list[DistributionPackage] = []
    problems: list[str] = []
    places: list[tuple[str, Callable[[str, str], list[DistributionPackage]]]]
    places = [(url, _index_files) for url in simple_index_urls()]
    places += [(url, _linked_files) for url in _find_links()]
    for place, read in places:
        try:
            files += _whole(functools.partial(read, place, project))
        except _UNREADABLE as error:
            problems.append(f"cannot read {_shown(place)}: {reason(error)}")
    return _Answer(files, problems, read_at=time.monotonic())


def _whole(read: Callable[[], T]) -> T:
    """Return what was read, which is tried CUT_OFF times while a body breaks off. Raise what reading raises."""
    for _ in range(CUT_OFF - 1):
        with contextlib.suppress(requests.exceptions.ChunkedEncodingError):
            return read()
    return read()


def _index_files(index_url: str, project: str) -> list[DistributionPackage]:
    if folder := local_path(index_url):
        page = folder / project / "index.html"
        base = page.parent.as_uri() + "/"
        if page.is_file():
            return ProjectPage.from_html(project, page.read_bytes(), base).packages
        return []
    with PyPISimple(index_url, session=open_session()) as client, contextlib.suppress(NoSuchProjectError):
        return client.get_project_page(project, timeout=TIMEOUT).packages
    return []


def _linked_files(location: str, project: str) -> list[DistributionPackage]:
    """Return the project's files in a folder, or on a page of links."""
    if folder := local_path(location):
        links = [Link(text=path.name, url=path.as_uri(), attrs={}) for path in folder.iterdir()]
        files = [DistributionPackage.from_link(link, project) for link in links]
    else:
        with open_session() as session:
            answer = session.get(location, timeout=TIMEOUT)
            answer.raise_for_status()
            files = ProjectPage.from_response(answer, project).packages
    return [file for file in files if file.project and canonicalize_name(file.project) == project]


def local_path(location: str) -> Path | None:
    """Return the local path of a find-links value or a file: address; None for a remote address."""
    address = urlsplit(location)
    if address.scheme == "file":
        return Path(url2pathname(address.path))
    if address.scheme in {"http", "https"}:
        return None
    return Path(location)


def _searched() -> str:
    """Return where files are looked for, in words."""
    places = [_shown(place) for place in [*simple_index_urls(), *_find_links()]]
    return f"searched: {', '.join(places) or 'nothing'}"


def _version_of(file: DistributionPackage) -> Version | None:
    try:
        return Version(file.version or "")
    except InvalidVersion:
        return None


def _wheel(project: str, version: str) -> DistributionPackage:
    wheels = [file for file in release_files(project, version) if file.package_type == "wheel"]
    if not wheels:
        raise EnvironmentMissing(f"{project} {version} has no wheel")
    return max(wheels, key=_preference)


def _preference(wheel: DistributionPackage) -> tuple[bool, bool, tuple[()] | tuple[int, str]]:
    """Return a key that sorts wheels as pip does: not withdrawn, for this processor, the newest build."""
    _, _, build, tags = parse_wheel_filename(wheel.filename)
    here = platform.machine().lower()
    return not wheel.is_yanked, any(tag.platform.endswith((here, "any")) for tag in tags), build


def opened(url: str, session: requests.Session) -> zipfile.ZipFile:
    """Return a local or remote wheel as an archive."""
    if folder := local_path(url):
        return zipfile.ZipFile(folder)
    archive: zipfile.ZipFile = RemoteZip(url, session=session, timeout=TIMEOUT)
    return archive


def _checked(path: str) -> str:
    """Return a member path. Raise ValueError if it would leave its folder."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\\" in path:
        raise ValueError(f"invalid path of a wheel's member: {path!r}")
    return path


def _shown(url: str) -> str:
    """Return an address without its user name and password."""
    address = urlsplit(url)
    if address.netloc:
        return address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()
    return url
