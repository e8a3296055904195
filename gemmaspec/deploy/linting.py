"""`profile lint`, and the same on the way of `up` and `render`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from gemmaspec import data
from gemmaspec.errors import ProfileError, UsageError
from gemmaspec.lint.check import check, vllm_for
from gemmaspec.lint.finding import Finding, Severity
from gemmaspec.patching.patch import Shelf
from gemmaspec.profile.find import profile_folders, profile_names
from gemmaspec.profile.load import Loaded, load_profile
from gemmaspec.releases.facts import newest, releases


@dataclass(frozen=True, kw_only=True)
class Linted:
    """What was found in one profile."""

    name: str
    vllm: str | None
    """The release it was checked against; None for a profile that is not valid."""
    assumed: bool = False
    """Nothing says which release will run; the newest one known was taken."""
    invalid: str | None = None
    """Why it is no profile at all."""
    findings: tuple[Finding, ...] = ()

    def count(self, severity: Severity) -> int:
        """How many findings there are; a profile that is not valid is one error."""
        invalid = 1 if self.invalid and severity == "error" else 0
        return invalid + sum(1 for one in self.findings if one.severity == severity)


def lint(
    names: Sequence[str], *, release: str | None = None, overrides: Sequence[str] = (), no_spec: bool = False
) -> tuple[Linted, ...]:
    """Check profiles, all that can be run when none is named; for the vLLM `release` when one is given.

    Raises UsageError for a name that does not exist, and for a release that is none.
    """
    if release is not None:
        _refuse_no_release(release)
    shelf = Shelf(data.patch_folders())
    asked = names or [str(file) for file in profile_names(profile_folders()).values()]
    return tuple(_linted(name, shelf, release=release, overrides=overrides, no_spec=no_spec) for name in asked)


def stop_on_errors(loaded: Loaded, tell: Callable[[str], None]) -> None:
    """Tell the warnings of a profile; raise ProfileError with its errors, if there are any."""
    findings = check(loaded, patches=Shelf(data.patch_folders()), notes=False)
    for one in _of(findings, "warning"):
        tell(str(one))
    errors = [str(one) for one in _of(findings, "error")]
    if errors:
        raise ProfileError("\n".join(errors), hint=f"gemmaspec profile lint {loaded.profile.name}")


def _linted(name: str, shelf: Shelf, *, release: str | None, overrides: Sequence[str], no_spec: bool) -> Linted:
    try:
        loaded = load_profile(name, overrides=overrides, no_spec=no_spec)
    except ProfileError as error:
        return Linted(name=name, vllm=None, invalid=error.message)
    vllm = vllm_for(loaded, release)
    findings = check(loaded, patches=shelf, asked=release)
    return Linted(name=loaded.profile.name, vllm=vllm.version, assumed=vllm.assumed, findings=findings)


def _of(findings: Iterable[Finding], severity: Severity) -> list[Finding]:
    return [one for one in findings if one.severity == severity]


def _refuse_no_release(release: str) -> None:
    try:
        Version(release)
    except InvalidVersion:
        raise UsageError(f"{release!r} is no release of vLLM; known are {', '.join(releases())}") from None
    if Version(release) > Version(newest()):
        raise UsageError(f"nothing is known about vLLM {release} yet; the newest known is {newest()}")
