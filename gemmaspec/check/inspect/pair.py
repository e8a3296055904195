"""Does a draft work with a target? What does not match, its effect in vLLM, and the fix.

Effects hold in every release of vLLM unless they name some: config/speculative.py, v1/spec_decode, v1/core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gemmaspec.check.inspect.drafting import method_findings
from gemmaspec.check.inspect.examine import kind_of
from gemmaspec.check.inspect.meaning import finding
from gemmaspec.check.inspect.own_cache import own_cache_findings
from gemmaspec.check.inspect.own_head import own_head_findings
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.checkpoint.stored import part_of
from gemmaspec.core.finding import Finding, impossible
from gemmaspec.core.sentences import readable_size


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
        needed: dict[str, None] = {}
        for found in self.findings:
            if found.severity == "patch":
                needed |= dict.fromkeys(found.patches)
        return tuple(needed)


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
    if draft.speculator:
        fitting = draft.speculator.method
        matching = own_head_findings(target, draft)
    else:
        fitting = "draft_model"
        matching = own_cache_findings(target, draft)
    asked = method or fitting
    match = next((row for row in known if (row.target, row.draft) == (target.ref, draft.ref)), None)
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
        return (finding("known-pair", f"this pair has been run: profile {match.profile}, published in {match.source}"),)
    others = [row for row in known if row.draft == draft.ref]
    if not others:
        return ()
    return (
        finding(
            "other-target",
            f"{draft.ref} has been run with {others[0].target} (profile {others[0].profile}), not with {target.ref}",
        ),
    )


def likeness_findings(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    """Yield findings on base and instruct models, context, and size."""
    yield from _kinds(target, draft)
    yield from _context(target, draft)
    yield from _size(target, draft)


def step_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of weights that one step of the decoder reads: its layers, and the experts that a token uses."""
    text = checkpoint.text
    if text.experts:
        share = text.experts_per_token / text.experts
    else:
        share = 1.0
    read = 0.0
    for tensor in checkpoint.tensors:
        if part_of(tensor.name) == "decoder layers":
            read += tensor.nbytes * (share if ".experts." in tensor.name else 1.0)
    return round(read)


def _kinds(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    mine, why_mine = kind_of(target)
    other, why_other = kind_of(draft)
    if mine is None or other is None or mine == other:
        return
    yield finding(
        "base-and-instruct",
        f"the target is {_article(mine)} model ({why_mine}), the draft {_article(other)} one ({why_other})",
        fix=f"use the draft made from the {mine} model" + (", google/gemma-4-…-it" if mine == "instruct" else ""),
    )


def _article(kind: str) -> str:
    if kind == "instruct":
        return f"an {kind}"
    return f"a {kind}"


def _context(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    mine, other = target.text.max_position_embeddings, draft.text.max_position_embeddings
    if other < mine and not draft.speculator:
        yield finding(
            "context", f"the draft was made for {other} tokens of context, the target for {mine}", draft=other
        )


def _size(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    mine, other = step_bytes(target), step_bytes(draft)
    if not mine or not other:
        return
    if other >= mine:
        yield finding(
            "draft-larger",
            f"one step of the draft reads {readable_size(other)} of weights, one of the target {readable_size(mine)}",
        )
    else:
        yield finding(
            "cost",
            f"one step of the draft reads {readable_size(other)} of decoder weights, one of the target "
            f"{readable_size(mine)}: {other / mine:.0%}",
        )


MOSTLY: Final = 0.99
"""Minimum share of equal tokens for which a pair is worth trying."""


def vocabulary_findings(target: Checkpoint, draft: Checkpoint, words: tuple[int, int] | None) -> Iterator[Finding]:
    """Yield findings on vocabulary, tokenizer and control tokens; `words` as in pair.py."""
    yield from _sizes(target, draft)
    if target.tokenizer_digest and draft.tokenizer_digest:
        yield from _tokenizers(target, draft, words)
    yield from _control_tokens(target, draft)


def _sizes(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    mine, other = target.text.vocab_size, draft.text.vocab_size
    if mine != other and draft.speculator:
        yield finding(
            "vocabulary-size",
            f"the target has {mine} tokens, but the draft was made for {other}",
            impact="Tokens that the draft proposes may not exist or may mean something else.",
            fix="use a draft for this target",
        )
    elif mine != other:
        message = f"the target has {mine} tokens, the draft {other}"
        yield finding("vocabulary-size", message, target=mine, draft=other)


def _tokenizers(target: Checkpoint, draft: Checkpoint, words: tuple[int, int] | None) -> Iterator[Finding]:
    if target.tokenizer_digest == draft.tokenizer_digest:
        yield finding("tokenizer", "both have the same tokenizer.json")
    elif words is None:
        yield finding(
            "tokenizer-unknown",
            "their tokenizer.json are different files; whether the same words have the same numbers can be "
            "told only from whole files on this machine",
            draft=draft.ref,
            target=target.ref,
        )
    elif words[0] == words[1]:
        message = "their tokenizer.json are written differently, but every token has the same id in both"
        yield finding("tokenizer", message)
    else:
        share = words[0] / max(words[1], 1)
        yield finding(
            "tokenizer-differs",
            f"{words[1] - words[0]} of the target's {words[1]} tokens have a different id in the draft, or none",
            severity="warning" if share >= MOSTLY else "error",
            impact="Drafts with them are never accepted." if share >= MOSTLY else None,
        )


def _control_tokens(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    mine, other = target.special_tokens, draft.special_tokens
    moved = sorted(token for token in mine.keys() & other.keys() if mine[token] != other[token])
    if moved:
        first = moved[0]
        yield finding(
            "special-tokens",
            f"{len(moved)} control tokens have different ids; {first!r} is {mine[first]} in the target and "
            f"{other[first]} in the draft",
        )
    if mine and other:
        alone = sorted(mine.keys() ^ other.keys())
    else:
        alone = []
    if alone:
        shown = ", ".join(map(repr, alone[:4])) + (" …" if len(alone) > 4 else "")
        yield finding("special-tokens-unshared", f"{len(alone)} control tokens are known to only one of them: {shown}")
