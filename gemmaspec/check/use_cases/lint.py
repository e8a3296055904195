"""`profile lint`, and the same checks in `up` and `render`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gemmaspec.check.lint.check import check, vllm_for
from gemmaspec.check.lint.machine import SLOW
from gemmaspec.check.lint.rule import Role, as_text
from gemmaspec.core import data, draft_ids
from gemmaspec.core.errors import GemmaspecError, ProfileError
from gemmaspec.core.finding import Finding, Severity
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.find import profile_names
from gemmaspec.core.profile.foreign_code import code_of, is_plain, trusts_models
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.profile.model import Draft, Profile, Target
from gemmaspec.core.releases.facts import asked_release
from gemmaspec.run.kept.lockfile import release_of
from gemmaspec.run.kept.models import models_of
from gemmaspec.run.stack.build import template_file, template_outside
from gemmaspec.run.stack.paths import template_in_image

if TYPE_CHECKING:
    from gemmaspec.core.checkpoint.model import Checkpoint
    from gemmaspec.core.checkpoint.published.shipped import PublishedCheckpoint


@dataclass(frozen=True, kw_only=True)
class LintRequest:
    """The request of `profile lint`."""

    names: Sequence[str] = ()
    """Profiles. If empty, the user's own, or the shipped ones if the user has none."""
    every: bool = False
    """Whether to include the shipped profiles, and findings inherited from them."""
    release: str | None = None
    """The vLLM release to check against; None for the profile's own."""
    overrides: Sequence[str] = ()
    no_spec: bool = False
    models: bool = False
    """Whether to check the checkpoints too."""


@dataclass(frozen=True, kw_only=True)
class Linted:
    """The findings in one profile."""

    name: str
    vllm: str | None
    """The release it was checked against; None for an invalid profile."""
    assumed: bool = False
    """Whether the newest known release was assumed, because the profile does not name one."""
    invalid: str | None = None
    """Why the profile is invalid, if it is."""
    findings: tuple[Finding, ...] = ()
    inherited: int = 0
    """Number of warnings and notes in shipped profiles, which the user cannot edit; they are not in `findings`."""
    shapes: tuple[str, ...] = ()
    """Why models could be found neither in the cache nor on the Hub."""
    looked_at: tuple[str, ...] = ()
    """The checkpoints whose files were read: the target, the draft; empty without `models`."""
    code: tuple[str, ...] = ()
    """Whose code its server runs, unless that is only vLLM's own image."""

    def count(self, severity: Severity) -> int:
        """Return how many findings there are; each line that makes a profile invalid is an error."""
        if self.invalid and severity == "error":
            invalid = len(self.invalid.splitlines())
        else:
            invalid = 0
        return invalid + sum(1 for finding in self.findings if finding.severity == severity)


def lint(request: LintRequest) -> tuple[Linted, ...]:
    """Check profiles.

    Raises UsageError for an unknown profile or an invalid release; with `models`, what open_checkpoint raises.
    """
    if request.release is None:
        asked = None
    else:
        asked = asked_release(request.release)
    shelf = Shelf(data.patch_folders())
    names = request.names or [str(file) for file in _files(every=request.every)]
    return tuple(_linted(name, request, asked, shelf) for name in names)


def stop_on_errors(
    loaded: Loaded,
    tell: Callable[[str], None],
    *,
    release: str | None,
    to_measure: bool = False,
    names_code: bool = True,
) -> None:
    """Report the warnings in the user's own files; raise ProfileError with the errors, if there are any.

    `release` is that of its vLLM, as `release_of` returns it. `to_measure`: one that is only slow may start, so that
    it can be measured. `names_code`: also tell whose code runs, if the profile trusts that of its models.

    The user cannot edit shipped profiles, so a start does not report their warnings; `profile lint` does. Checkpoints
    in folders are read too, since that needs no network.
    """
    longest = _longest(loaded.profile)
    folders = _in_folders(loaded.profile)
    findings = check(
        loaded,
        patches=Shelf(data.patch_folders()),
        asked=release,
        notes=False,
        longest=longest,
        target=folders.get("target"),
        draft=folders.get("draft"),
    )
    for finding in _of(_written_by_user(findings), "warning"):
        tell(as_text(finding))
    if names_code and trusts_models(loaded.profile):
        tell(f"runs code of: {', '.join(code_of(loaded.profile))}")
    errors = [as_text(finding) for finding in _of(findings, "error") if not (to_measure and finding.code in SLOW)]
    if errors:
        raise ProfileError("\n".join(errors), hint=f"gemmaspec profile lint {loaded.typed}")


COSTLY: Final = frozenset({"GS207", "GS302", "GS504", "GS505", "GS506"})
"""Codes of what changes speed or memory and stops no start; GS501, lost CUDA graphs, is listed apart from them."""


def costly(loaded: Loaded, *, release: str | None) -> tuple[Finding, ...]:
    """Return what lint knows of a profile's speed and memory, in shipped profiles too; `release` as `release_of`."""
    findings = check(loaded, patches=Shelf(data.patch_folders()), asked=release, longest=_longest(loaded.profile))
    return tuple(finding for finding in findings if finding.code in COSTLY and finding.severity != "error")


def _linted(name: str, request: LintRequest, release: str | None, shelf: Shelf) -> Linted:
    try:
        loaded = load_profile(name, overrides=request.overrides, no_spec=request.no_spec)
    except ProfileError as error:
        return Linted(name=name, vllm=None, invalid=error.message)
    asked = release or release_of(loaded)
    profile, vllm = loaded.profile, vllm_for(asked)
    if request.models:
        target, draft = _models(profile)
    else:
        target, draft = (None, None)
    findings = check(
        loaded, patches=shelf, asked=asked, target=target, draft=draft, here=_here(loaded), longest=_longest(profile)
    )
    if request.every or _is_shipped(loaded.file):
        kept = findings
    else:
        kept = tuple(_written_by_user(findings))
    shapes = [known.says for model in (target, draft) if model and (known := _shipped(model))]
    return Linted(
        name=profile.name,
        vllm=vllm.version,
        assumed=vllm.assumed,
        findings=kept,
        inherited=len(findings) - len(kept),
        shapes=tuple(shapes),
        looked_at=tuple(model.ref for model in (target, draft) if model),
        code=_foreign_code(profile),
    )


def _foreign_code(profile: Profile) -> tuple[str, ...]:
    code = code_of(profile)
    if is_plain(code):
        return ()
    return tuple(code)


def _shipped(model: Checkpoint) -> PublishedCheckpoint | None:
    from gemmaspec.core.checkpoint.published.shipped import shipped_for

    if model.source == "shipped":
        return shipped_for(model.ref)
    return None


def _files(*, every: bool) -> list[Path]:
    files = list(profile_names().values())
    users = [file for file in files if not _is_shipped(file)]
    if users and not every:
        return users
    return files


def _is_shipped(file: Path) -> bool:
    return file.absolute().is_relative_to(data.PROFILES.absolute())


def _written_by_user(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield errors, and findings in the user's own files or from the command line."""
    for issue in findings:
        if issue.severity == "error" or not (issue.place and issue.place.line and _is_shipped(Path(issue.place.file))):
            yield issue


def _here(loaded: Loaded) -> dict[str, str]:
    """Return the state of the models' folders and the chat template on this machine, for the rules GS902-GS904."""
    profile = loaded.profile
    kinds = {model.role: _kind(model.folder) for model in models_of(profile) if model.local and not model.is_tiny}
    if template_in_image(profile):
        pass  # what lies in the image is not known here
    elif template_outside(loaded):
        kinds["template"] = "outside"
    elif profile.chat.template and not template_file(profile).is_file():
        kinds["template"] = "missing"
    if profile.draft and profile.draft.ids:
        try:
            kinds["ids count"] = str(len(draft_ids.read(profile.draft.ids)))
        except ProfileError as error:
            kinds["ids"] = error.message.removeprefix("draft.ids: ")
    return kinds


def _longest(profile: Profile) -> dict[Role, int]:
    """Return how many tokens the models were made for, where that is known without the network."""
    from gemmaspec.run.kept.models import hub_cache
    from gemmaspec.run.models.open import longest_context

    cache = hub_cache(profile)
    named: dict[Role, Target | Draft | None] = {"target": profile.target, "draft": profile.draft}
    lengths = {
        role: longest_context(ref.model, revision=ref.revision, cache_dir=cache) for role, ref in named.items() if ref
    }
    return {role: tokens for role, tokens in lengths.items() if tokens}


def _kind(folder: Path) -> str:
    if folder.is_file():
        return "file"
    if not folder.is_dir():
        return "missing"
    if (folder / "config.json").is_file():
        return "folder"
    return "no config"


def _models(profile: Profile) -> tuple[Checkpoint, Checkpoint | None]:
    from gemmaspec.run.kept.models import hub_cache
    from gemmaspec.run.models.open import open_checkpoint

    def opened(model: Target | Draft) -> Checkpoint:
        return open_checkpoint(model.model, revision=model.revision, cache_dir=hub_cache(profile))

    return opened(profile.target), opened(profile.draft) if profile.draft else None


def _in_folders(profile: Profile) -> dict[str, Checkpoint]:
    """Return the checkpoints that lie in folders of this machine; one that cannot be read is reported elsewhere."""
    from gemmaspec.run.models.open import open_checkpoint

    found: dict[str, Checkpoint] = {}
    for model in models_of(profile):
        if not model.local or model.is_tiny or _kind(model.folder) != "folder":
            continue
        with contextlib.suppress(GemmaspecError):
            found[model.role] = open_checkpoint(str(model.folder))
    return found


def _of(findings: Iterable[Finding], severity: Severity) -> list[Finding]:
    return [finding for finding in findings if finding.severity == severity]
