"""By which method a draft runs, and since which release."""

from __future__ import annotations

from collections.abc import Iterator

from gemmaspec.check.inspect.meaning import finding
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.checkpoint.sizes import UNIFIED
from gemmaspec.core.finding import Finding
from gemmaspec.core.releases.drafting import ASSISTANTS_FROM, found_in_path, since
from gemmaspec.core.releases.facts import first_with, releases


def method_findings(target: Checkpoint, draft: Checkpoint, *, fitting: str, asked: str) -> Iterator[Finding]:
    """Yield findings on the method that the draft is made for, and the one that vLLM uses."""
    if target.speculator:
        yield finding("target-is-draft", f"{target.ref} can only be used as a draft ({target.architecture})")
    if asked != fitting:
        yield finding("method", f"{draft.architecture} drafts with method {fitting}, not {asked}", method=fitting)
    yield from _since(target, draft, fitting)
    if fitting in ("draft_model", "mtp"):
        yield from _path(draft.ref)


def _path(ref: str) -> Iterator[Finding]:
    """Yield findings on a folder's name, which matters only to the process engine; containers use /models/draft."""
    taken = found_in_path(ref)
    if taken is None:
        return
    folder = ref.startswith(("/", "~", ".", "state:"))
    yield finding(
        "path-decides",
        f"{taken[0]!r} in {ref} makes vLLM {taken[2]} and later take method {taken[1]} instead",
        severity="warning" if folder else "error",
        impact="In a container the folder is /models/draft, so its own name does not matter." if folder else "",
    )


def _since(target: Checkpoint, draft: Checkpoint, method: str) -> Iterator[Finding]:
    unified = "unified" in target.model_type or "unified" in draft.model_type
    first = first_with(UNIFIED) if unified else since(method)
    if first and first != releases()[0]:
        yield finding(
            "releases",
            f"method {method} for this target works from vLLM {first} on",
            impact=f"Gemma 4 assistants also need transformers {ASSISTANTS_FROM} or later." if method == "mtp" else "",
        )
    if method == "eagle3":
        yield finding(
            "eagle3-groups", "vLLM 0.19.0 needs a patch for an EAGLE-3 head with Gemma 4; later releases do not"
        )
