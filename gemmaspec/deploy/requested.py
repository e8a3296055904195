"""The release that `--for` names."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from gemmaspec.errors import UsageError
from gemmaspec.releases.facts import newest, releases


def asked_release(text: str) -> str:
    """A release of the table as the table writes it (v0.33.0, 0.33 and 0.33.0+cu130 are 0.33.0), or another version.

    Raises UsageError for what is no version, and for one that nothing is known about yet.
    """
    try:
        version = Version(text)
    except InvalidVersion:
        raise UsageError(f"{text!r} is no release of vLLM; known are {', '.join(releases())}") from None
    known = next((release for release in releases() if Version(release) == Version(version.public)), None)
    if known is None and version > Version(newest()):
        raise UsageError(f"nothing is known about vLLM {text} yet; the newest known is {newest()}")
    return known or str(version)
