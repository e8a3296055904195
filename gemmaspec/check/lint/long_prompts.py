"""GS506: what a long prompt costs where the cache is read in one piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.check.lint.attention import attention_backend
from gemmaspec.check.lint.patching import taken
from gemmaspec.check.lint.rule import Issue, Subject, rule

_SPLIT: Final = "triton-verify-split-kv"
"""The patch that splits the cache for verification too."""

_SHORT: Final = 4096
"""Tokens of context up to which a draft is not slowed down much by Triton's attention."""


@rule("GS506", "note", of_gemma=True)
def long_prompts(subject: Subject) -> Iterator[Issue]:
    """Drafts at long prompts under Triton up to 0.32: verifying reads the cache without splitting it (#48076)."""
    room = subject.command.number("--max-model-len") or 0
    if not subject.resolved.method or room <= _SHORT or subject.runs(">=0.33"):
        return
    if attention_backend(subject, "target") != "TRITON_ATTN" or _SPLIT in taken(subject):
        return
    unsplit = f"Triton's attention of vLLM {subject.vllm} reads a request's cache in one piece when it verifies drafts"
    message = f"{unsplit}: {_unsplit_costs(subject.machine.compute_capability)}"
    if _SPLIT in subject.patches and subject.runs(">=0.26"):
        ours = f"list {_SPLIT} under patches.speed, "
    else:
        ours = ""
    fix = f"{ours}use vLLM 0.33 or later for long prompts, or measure yours (gemmaspec bench --context)"
    yield Issue(path=("speculative", "method"), message=message, fix=fix)


def _unsplit_costs(capability: str | None) -> str:
    """Return what that costs on a GPU, as far as it is known: measured on Hopper, computed for a Spark."""
    if capability == "12.1":
        return (
            "computed for a 31B with an FP8 cache and 7 drafted tokens, one request, a draft still pays on a DGX Spark "
            "where a step yields more than 1.7 tokens after 32,768 of prompt, and 2.6 tokens after 131,072"
        )
    if (capability or "9.0").startswith("9."):
        return (
            "with prompts of 8,192 tokens a 31B under TRITON_ATTN was no faster with its assistant than without, on an "
            "H200"
        )
    return "how much of what a draft gains is lost with long prompts on this GPU, nobody has measured"
