"""Do target and draft use the same token ids?

vLLM reads everything with the target's tokenizer (vllm/config/speculative.py gives the draft that one); nothing
compares the two but the size of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.checkpoint.parts import Checkpoint
from gemmaspec.finding import Finding

MOSTLY: Final = 0.99
"""Minimum share of equal tokens for which a pair is worth trying."""
_OTHER_WORDS: Final = "The draft's tokens mean other words, so almost nothing is accepted, without an error."


def vocabulary_findings(target: Checkpoint, draft: Checkpoint, words: tuple[int, int] | None) -> Iterator[Finding]:
    """Yield findings on vocabulary, tokenizer and control tokens; `words` as in pair.py."""
    yield from _sizes(target, draft)
    if target.tokenizer_digest and draft.tokenizer_digest:
        yield from _tokenizers(target, draft, words)
    yield from _control_tokens(target, draft)


def _sizes(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    mine, other = target.text.vocab_size, draft.text.vocab_size
    if mine == other:
        return
    if draft.speculator:
        yield Finding(
            code="vocabulary-size",
            severity="error",
            message=f"the target has {mine} tokens, but the draft was made for {other}",
            impact="Tokens that the draft proposes may not exist or may mean something else.",
            fix="use a draft for this target",
        )
        return
    yield Finding(
        code="vocabulary-size",
        severity="error",
        message=f"the target has {mine} tokens, the draft {other}",
        impact="vLLM refuses: Target and draft model should have the same vocabulary size. Target model "
        f"vocab_size={mine}. Draft model vocab_size={other}.",
        fix="another draft; from vLLM 0.25.0 on speculative.use_heterogeneous_vocab: true drafts greedily over the "
        "tokens that both know",
    )


def _tokenizers(target: Checkpoint, draft: Checkpoint, words: tuple[int, int] | None) -> Iterator[Finding]:
    if target.tokenizer_digest == draft.tokenizer_digest:
        yield Finding(code="tokenizer", severity="note", message="both have the same tokenizer.json")
    elif words is None:
        yield Finding(
            code="tokenizer-unknown",
            severity="note",
            message="their tokenizer.json are different files; whether the same words have the same numbers can be "
            "told only from whole files on this machine",
            fix=f"hf download {draft.ref} tokenizer.json    # and the same for {target.ref}; then inspect again",
        )
    elif words[0] == words[1]:
        message = "their tokenizer.json are written differently, but every token has the same id in both"
        yield Finding(code="tokenizer", severity="note", message=message)
    else:
        share = words[0] / max(words[1], 1)
        yield Finding(
            code="tokenizer-differs",
            severity="warning" if share >= MOSTLY else "error",
            message=f"{words[1] - words[0]} of the target's {words[1]} tokens have a different id in the draft, or "
            "none",
            impact="Drafts with them are never accepted." if share >= MOSTLY else _OTHER_WORDS,
            fix="use a draft with the target's tokenizer",
        )


def _control_tokens(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    mine, other = target.special_tokens, draft.special_tokens
    moved = sorted(token for token in mine.keys() & other.keys() if mine[token] != other[token])
    if moved:
        first = moved[0]
        yield Finding(
            code="special-tokens",
            severity="error",
            message=f"{len(moved)} control tokens have different ids; {first!r} is {mine[first]} in the target and "
            f"{other[first]} in the draft",
            impact=_OTHER_WORDS,
            fix="use a draft with the target's tokenizer",
        )
    alone = sorted(mine.keys() ^ other.keys()) if mine and other else []
    if alone:
        shown = ", ".join(map(repr, alone[:4])) + (" …" if len(alone) > 4 else "")
        yield Finding(
            code="special-tokens-unshared",
            severity="note",
            message=f"{len(alone)} control tokens are known to only one of them: {shown}",
            impact="The draft guesses badly where they occur.",
        )
