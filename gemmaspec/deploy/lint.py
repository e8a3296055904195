"""`profile lint`, and the same on the way of `up` and `render`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gemmaspec import data
from gemmaspec.deploy.lockfile import release_of
from gemmaspec.deploy.requested import asked_release
from gemmaspec.errors import ProfileError
from gemmaspec.lint.check import check, vllm_for
from gemmaspec.lint.finding import Finding, Severity
from gemmaspec.patching.patch import Shelf
from gemmaspec.profile.find import profile_folders, profile_names
from gemmaspec.profile.load import Loaded, load_profile
from gemmaspec.profile.model import Draft, Profile, Target

if TYPE_CHECKING:
    from gemmaspec.checkpoint.model import Checkpoint
    from gemmaspec.checkpoint.published.shipped import Shipped


@dataclass(frozen=True, kw_only=True)
class Request:
    """What `profile lint` was asked for."""

    names: Sequence[str] = ()
    """Profiles; all that can be run when empty."""
    release: str | None = None
    """The vLLM to check against; the profile's own when not given."""
    overrides: Sequence[str] = ()
    no_spec: bool = False
    models: bool = False
    """Look into the checkpoints as well."""


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
    shapes: tuple[str, ...] = ()
    """What was said of models that neither the cache nor the Hub could be asked about."""

    def count(self, severity: Severity) -> int:
        """How many findings there are; a profile that is not valid is one error."""
        invalid = 1 if self.invalid and severity == "error" else 0
        return invalid + sum(1 for one in self.findings if one.severity == severity)


def lint(request: Request) -> tuple[Linted, ...]:
    """Check profiles.

    Raises UsageError for a name that does not exist, and for a release that is none; with `models`, what
    open_checkpoint raises.
    """
    asked = None if request.release is None else asked_release(request.release)
    shelf = Shelf(data.patch_folders())
    names = request.names or [str(file) for file in profile_names(profile_folders()).values()]
    return tuple(_linted(name, request, asked, shelf) for name in names)


def stop_on_errors(loaded: Loaded, tell: Callable[[str], None]) -> None:
    """Tell the warnings of a profile; raise ProfileError with its errors, if there are any."""
    findings = check(loaded, patches=Shelf(data.patch_folders()), asked=release_of(loaded), notes=False)
    told = [one for one in _of(findings, "warning") if not _ships(one)]
    for one in told:
        tell(str(one))
    if kept := sum(1 for _ in _of(findings, "warning")) - len(told):
        tell(f"{kept} warning{'s' * (kept > 1)} of the shipped profile itself: gemmaspec profile lint {loaded.typed}")
    errors = [str(one) for one in _of(findings, "error")]
    if errors:
        raise ProfileError("\n".join(errors), hint=f"gemmaspec profile lint {loaded.typed}")


def _ships(finding: Finding) -> bool:
    """Return whether what is blamed stands in a file of gemmaspec, which nobody edits before a start."""
    return Path(finding.file).resolve().is_relative_to(data.PROFILES.resolve())


def _linted(name: str, request: Request, release: str | None, shelf: Shelf) -> Linted:
    try:
        loaded = load_profile(name, overrides=request.overrides, no_spec=request.no_spec)
    except ProfileError as error:
        return Linted(name=name, vllm=None, invalid=error.message)
    asked = release or release_of(loaded)
    profile, vllm = loaded.profile, vllm_for(loaded, asked)
    target, draft = _models(profile) if request.models else (None, None)
    findings = check(loaded, patches=shelf, asked=asked, target=target, draft=draft)
    shapes = tuple(known.says for model in (target, draft) if model and (known := _shipped(model)))
    return Linted(name=profile.name, vllm=vllm.version, assumed=vllm.assumed, findings=findings, shapes=shapes)


def _shipped(model: Checkpoint) -> Shipped | None:
    from gemmaspec.checkpoint.published.shipped import shipped_for

    return shipped_for(model.ref) if model.source == "shipped" else None


def _models(profile: Profile) -> tuple[Checkpoint, Checkpoint | None]:
    from gemmaspec.deploy.models import hub_cache
    from gemmaspec.models.open import open_checkpoint

    def opened(model: Target | Draft) -> Checkpoint:
        return open_checkpoint(model.model, revision=model.revision, cache_dir=hub_cache(profile))

    return opened(profile.target), opened(profile.draft) if profile.draft else None


def _of(findings: Iterable[Finding], severity: Severity) -> list[Finding]:
    return [one for one in findings if one.severity == severity]
