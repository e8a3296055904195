"""Does a draft work with a target? What does not match, its effect in vLLM, and the fix.

Effects hold in every release of vLLM unless they name some: config/speculative.py, v1/spec_decode, v1/core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemmaspec.checkpoint.parts import Checkpoint
from gemmaspec.finding import Finding, impossible
from gemmaspec.inspect.drafting import method_findings, own_cache_findings, own_head_findings
from gemmaspec.inspect.similarity import likeness_findings
from gemmaspec.inspect.vocabulary import vocabulary_findings


@dataclass(frozen=True, kw_only=True)
class KnownPair:
    """A pair that has been run, according to a profile."""

    target: str
    draft: str
    method: str
    profile: str
    source: str
    """Where the figure of the profile was published."""


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """The result for a target and a draft."""

    method: str
    """The `speculative.method` that suits the draft, or the requested one."""
    findings: tuple[Finding, ...]
    known: KnownPair | None

    @property
    def works(self) -> bool:
        """Whether the pair can work, possibly with patches."""
        return not impossible(self.findings)

    @property
    def patches(self) -> tuple[str, ...]:
        """The patches that it needs, each once."""
        needed = (finding.patches for finding in self.findings if finding.severity == "patch")
        return tuple(dict.fromkeys(patch for some in needed for patch in some))


def pair(
    target: Checkpoint,
    draft: Checkpoint,
    *,
    method: str | None = None,
    words: tuple[int, int] | None = None,
    known: Sequence[KnownPair] = (),
) -> Pairing:
    """Return the findings on a pair; `method` is the profile's, else the one that the draft is made for.

    `words`, if both tokenizers were read: the number of tokens with the same id in both, and of the target's tokens.
    """
    fitting = draft.speculator.method if draft.speculator else "draft_model"
    asked = method or fitting
    matching = own_head_findings(target, draft) if draft.speculator else own_cache_findings(target, draft)
    match = next((one for one in known if (one.target, one.draft) == (target.ref, draft.ref)), None)
    findings = (
        *method_findings(target, draft, fitting=fitting, asked=asked),
        *vocabulary_findings(target, draft, words),
        *matching,
        *likeness_findings(target, draft),
        *_known(match, target, draft, known),
    )
    return Pairing(method=asked, findings=findings, known=match)


def _known(
    match: KnownPair | None, target: Checkpoint, draft: Checkpoint, known: Sequence[KnownPair]
) -> tuple[Finding, ...]:
    if match:
        return (
            Finding(
                code="known-pair",
                severity="note",
                message=f"this pair has been run: profile {match.profile}, published in {match.source}",
            ),
        )
    others = [one for one in known if one.draft == draft.ref]
    if not others:
        return ()
    return (
        Finding(
            code="other-target",
            severity="note",
            message=f"{draft.ref} has been run with {others[0].target} (profile {others[0].profile}), not with "
            f"{target.ref}",
            impact="Its acceptance is unknown.",
        ),
    )
