"""The release that `--release` names."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from gemmaspec.errors import UsageError
from gemmaspec.releases.facts import newest, releases


def asked_release(text: str) -> str:
    """Return a known release in its canonical form (v0.33.0, 0.33 and 0.33.0+cu130 are 0.33.0), or another version.

    Raises UsageError for an invalid version, and for one newer than the known releases.
    """
    try:
        version = Version(text)
    except InvalidVersion:
        raise UsageError(f"{text!r} is not a vLLM release; known releases: {', '.join(releases())}") from None
    known = next((release for release in releases() if Version(release) == Version(version.public)), None)
    if known is None and version > Version(newest()):
        raise UsageError(f"vLLM {text} is not known yet; the newest known release is {newest()}")
    return known or str(version)
