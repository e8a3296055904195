"""The chat template in each vLLM sdist, read through the user's own package index and kept in the cache."""

from __future__ import annotations

import tarfile
from concurrent.futures import ThreadPoolExecutor

import requests
import urllib3
from pypi_simple import DistributionPackage

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.index.wheels import TIMEOUT, cache_folder, keep, open_session, release_files

RELEASES = (
    *("0.19.1", "0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0"),
    *("0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"),
)
MEMBER = "examples/tool_chat_template_gemma4.jinja"


def read_released_templates() -> dict[str, str]:
    """The template's text by release; one thread per few, since each sdist is tens of megabytes.

    Raises EnvironmentMissing when any of them cannot be had.
    """
    release_files("vllm", RELEASES[0])  # so that the index is asked once, and not by every thread
    with ThreadPoolExecutor(max_workers=8) as pool:
        return dict(zip(RELEASES, pool.map(_read, RELEASES), strict=True))


def _read(version: str) -> str:
    sdists = [file for file in release_files("vllm", version) if file.package_type == "sdist"]
    if not sdists:
        raise EnvironmentMissing(f"vllm {version} was released without an sdist")
    folder = cache_folder(sdists[0])
    if folder and (folder / MEMBER).is_file():
        return (folder / MEMBER).read_text(encoding="utf-8")
    content = _stream(sdists[0])
    if folder:
        keep(folder / MEMBER, content)
    return content.decode()


def _stream(sdist: DistributionPackage) -> bytes:
    """Read the sdist from its beginning and stop at the template: a .tar.gz has no way into its middle."""
    try:
        with (
            open_session() as session,
            session.get(sdist.url, stream=True, timeout=TIMEOUT) as answer,
            tarfile.open(fileobj=_body(answer), mode="r|gz") as archive,
        ):
            for member in archive:
                file = archive.extractfile(member) if member.name.endswith(f"/{MEMBER}") else None
                if file:
                    return file.read()
    except (OSError, tarfile.TarError, urllib3.exceptions.HTTPError) as error:
        raise EnvironmentMissing(f"{sdist.filename} could not be read: {error}") from error
    raise EnvironmentMissing(f"{sdist.filename} has no {MEMBER}")


def _body(answer: requests.Response) -> urllib3.BaseHTTPResponse:
    answer.raise_for_status()
    return answer.raw
