"""`inspect`: open one or two checkpoints, examine them, and check whether they work together."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemmaspec.checkpoint.parts import Checkpoint
from gemmaspec.deploy.kept.attention import Backends, expected, graphs_expected
from gemmaspec.deploy.kept.models import hub_cache
from gemmaspec.errors import UsageError
from gemmaspec.finding import Finding, impossible
from gemmaspec.inspect.examine import examine
from gemmaspec.inspect.pair import KnownPair, Pairing, pair
from gemmaspec.models.open import open_checkpoint
from gemmaspec.models.vocabulary import same_words
from gemmaspec.profile.command import command_of
from gemmaspec.profile.fields import hub_id
from gemmaspec.profile.find import profile_folders, profile_names
from gemmaspec.profile.load import load_profile
from gemmaspec.profile.model import Profile
from gemmaspec.profile.runs import vllm_of
from gemmaspec.releases.facts import newest
from gemmaspec.stack.paths import is_local


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
    for one in filter(None, (request.target, request.draft)):
        if name := hub_id(one):
            raise UsageError(f"{one} is an address, and models are named owner/name", hint=f"gemmaspec inspect {name}")
    wanted = _wanted(request)
    target = _opened(wanted.target, wanted, request)
    seen = _look(target, profile=wanted.profile)
    if wanted.draft is None:
        return Inspection(target=seen, draft=None, pairing=None, **_served(wanted, target))
    draft = _opened(wanted.draft, wanted, request)
    differ = target.tokenizer_digest != draft.tokenizer_digest
    words = same_words(target, draft, cache_dir=wanted.cache_dir) if differ else None
    pairing = pair(target, draft, method=wanted.method, words=words, known=known_pairs())
    return Inspection(
        target=seen,
        draft=_look(draft, drafts=True),
        pairing=pairing,
        **_served(wanted, target),
    )


def _served(wanted: _Wanted, target: Checkpoint) -> dict[str, Any]:
    """Return what the server of a profile will choose; nothing for a checkpoint."""
    if wanted.profile is None:
        return {}
    vllm = vllm_of(wanted.profile) or newest()
    graphs = graphs_expected(wanted.profile, vllm, capability=None, target=target)
    return {"attention": expected(wanted.profile, target), "graphs": tuple(graphs)}


def known_pairs() -> tuple[KnownPair, ...]:
    """Return the pairs of the available profiles that have a published figure."""
    loaded = [load_profile(str(file)).profile for file in profile_names(profile_folders()[-1:]).values()]
    return tuple(known for profile in loaded if (known := _known(profile)))


def _known(profile: Profile) -> KnownPair | None:
    own = next((one for one in profile.measured if not one.target and not one.draft), None)
    if profile.draft is None or profile.speculative is None or own is None:
        return None
    return KnownPair(
        target=profile.target.model,
        draft=profile.draft.model,
        method=profile.speculative.method,
        profile=profile.name,
        source=own.source,
    )


def _wanted(request: InspectRequest) -> _Wanted:
    draft = (request.draft, request.draft_revision) if request.draft else None
    if is_local(request.target) or ("/" in request.target and not request.target.endswith(".yaml")):
        return _Wanted(target=(request.target, request.revision), draft=draft, method=None, cache_dir=None)
    if request.revision:
        raise UsageError(f"{request.target} is a profile, which has its own revisions")
    profile = load_profile(request.target).profile
    own = (profile.draft.model, profile.draft.revision) if profile.draft else None
    method = profile.speculative.method if profile.speculative and draft is None else None
    return _Wanted(
        target=(profile.target.model, profile.target.revision),
        draft=draft or own,
        method=method,
        cache_dir=hub_cache(profile),
        profile=profile if draft is None else None,
    )


def _opened(model: tuple[str, str | None], wanted: _Wanted, request: InspectRequest) -> Checkpoint:
    ref, revision = model
    return open_checkpoint(ref, revision=revision, cache_dir=wanted.cache_dir, offline=request.offline)


def _look(checkpoint: Checkpoint, *, drafts: bool = False, profile: Profile | None = None) -> Inspected:
    text_only = profile is not None and bool(command_of(profile).switched("--language-model-only"))
    return Inspected(checkpoint=checkpoint, findings=examine(checkpoint, drafts=drafts, text_only=text_only))
