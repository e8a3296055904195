"""`inspect`: open one or two checkpoints, examine them, and check whether they work together."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemmaspec.check.inspect.examine import examine
from gemmaspec.check.inspect.pair import KnownPair, Pairing, pair
from gemmaspec.check.inspect.split import split_findings
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.errors import UsageError
from gemmaspec.core.finding import Finding, impossible
from gemmaspec.core.profile.command import command_of
from gemmaspec.core.profile.fields import hub_id
from gemmaspec.core.profile.find import profile_folders, profile_names
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.resolved.resolve import resolved_of
from gemmaspec.run.kept.attention import Backends, ahead_of
from gemmaspec.run.kept.models import hub_cache
from gemmaspec.run.models.open import open_checkpoint
from gemmaspec.run.models.vocabulary import same_words
from gemmaspec.run.stack.paths import is_local


@dataclass(frozen=True, kw_only=True)
class InspectRequest:
    """What to inspect."""

    target: str
    """A Hugging Face id, a folder, or the name of a profile."""
    draft: str | None = None
    revision: str | None = None
    draft_revision: str | None = None
    offline: bool = False


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """One checkpoint and the findings about it."""

    checkpoint: Checkpoint
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The result of an inspection."""

    target: Inspected
    draft: Inspected | None
    pairing: Pairing | None
    attention: Backends = field(default_factory=dict)
    """The attention backends that a profile's models will get; empty for a checkpoint, which names no machine."""
    graphs: tuple[str, ...] = ()
    """The CUDA graphs that a profile's server will lack."""

    @property
    def works(self) -> bool:
        """Whether no finding is an error."""
        looks = [look for look in (self.target, self.draft) if look]
        alone = any(impossible(look.findings) for look in looks)
        return not alone and (self.pairing is None or self.pairing.works)


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """A request with everything that a profile adds to it."""

    target: tuple[str, str | None]
    draft: tuple[str, str | None] | None
    method: str | None
    cache_dir: Path | None
    profile: Profile | None = None


def inspect(request: InspectRequest) -> Inspection:
    """Inspect a checkpoint, and its draft if one is named.

    Raises EnvironmentMissing, CheckpointError, and UsageError for a name that is neither a model nor a profile.
    """
    for ref in filter(None, (request.target, request.draft)):
        if name := hub_id(ref):
            raise UsageError(f"{ref} is an address, and models are named owner/name", hint=f"gemmaspec inspect {name}")
    wanted = _wanted(request)
    target = _opened(wanted.target, wanted, request)
    seen = _look(target, profile=wanted.profile)
    if wanted.draft is None:
        return Inspection(target=seen, draft=None, pairing=None, **_served(wanted, target))
    draft = _opened(wanted.draft, wanted, request)
    differ = target.tokenizer_digest != draft.tokenizer_digest
    if differ:
        words = same_words(target, draft, cache_dir=wanted.cache_dir)
    else:
        words = None
    pairing = pair(target, draft, method=wanted.method, words=words, known=known_pairs())
    return Inspection(target=seen, draft=_look(draft, drafts=True), pairing=pairing, **_served(wanted, target))


def _served(wanted: _Wanted, target: Checkpoint) -> dict[str, Any]:
    """Return what the server of a profile will choose; nothing for a checkpoint."""
    if wanted.profile is None:
        return {}
    attention = ahead_of(resolved_of(wanted.profile, target=target))
    return {"attention": attention.backends, "graphs": attention.lost}


def known_pairs() -> tuple[KnownPair, ...]:
    """Return the pairs of the available profiles that have a published figure."""
    loaded = [load_profile(str(file)).profile for file in profile_names(profile_folders()[-1:]).values()]
    return tuple(known for profile in loaded if (known := _known(profile)))


def _known(profile: Profile) -> KnownPair | None:
    known = next((cell for cell in profile.measured if not cell.target and not cell.draft), None)
    if profile.draft is None or profile.speculative is None or known is None:
        return None
    return KnownPair(
        target=profile.target.model,
        draft=profile.draft.model,
        method=profile.speculative.method,
        profile=profile.name,
        source=known.source,
    )


def _wanted(request: InspectRequest) -> _Wanted:
    if request.draft:
        draft = (request.draft, request.draft_revision)
    else:
        draft = None
    if is_local(request.target) or ("/" in request.target and not request.target.endswith(".yaml")):
        return _Wanted(target=(request.target, request.revision), draft=draft, method=None, cache_dir=None)
    if request.revision:
        raise UsageError(f"{request.target} is a profile, which has its own revisions")
    profile = load_profile(request.target).profile
    if profile.draft:
        of_profile = (profile.draft.model, profile.draft.revision)
    else:
        of_profile = None
    if profile.speculative and draft is None:
        method = profile.speculative.method
    else:
        method = None
    return _Wanted(
        target=(profile.target.model, profile.target.revision),
        draft=draft or of_profile,
        method=method,
        cache_dir=hub_cache(profile),
        profile=profile if draft is None else None,
    )


def _opened(model: tuple[str, str | None], wanted: _Wanted, request: InspectRequest) -> Checkpoint:
    ref, revision = model
    return open_checkpoint(ref, revision=revision, cache_dir=wanted.cache_dir, offline=request.offline)


def _look(checkpoint: Checkpoint, *, drafts: bool = False, profile: Profile | None = None) -> Inspected:
    command = command_of(profile) if profile else None
    text_only = command is not None and bool(command.switched("--language-model-only"))
    whole = command is not None and bool(command.switched("--enable-expert-parallel"))
    if profile:
        gpus = profile.serve.tensor_parallel_size or 1
    else:
        gpus = 1
    found = examine(checkpoint, drafts=drafts, text_only=text_only)
    return Inspected(checkpoint=checkpoint, findings=(*found, *split_findings(checkpoint, gpus=gpus, whole=whole)))
