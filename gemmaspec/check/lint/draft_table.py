"""GS820, GS822: how many tokens are drafted, by the number of requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from packaging.version import Version

from gemmaspec.check.lint.rule import Issue, Path, Subject, rule

_KEY: Final[Path] = ("speculative", "k_by_requests")

_FIELD: Final = "num_speculative_tokens_per_batch_size"

_CUT: Final = ("draft_model", "dflash", "dspark")
"""Methods whose v2 drafter of 0.32.0 takes the asked number and does not use it: standalone_ar/speculator.py and
dflash/speculator.py in vllm/v1/worker/gpu/spec_decode."""


@rule("GS820", "error")
def table_does_not_hold(subject: Subject) -> Iterator[Issue]:
    """A table of k where vLLM has none, does not save what it should, or answers wrongly."""
    table = _table(subject)
    why = _why_not(subject, table) if table else ""
    if why:
        yield Issue(path=_KEY, message=why, fix="remove it, or choose one num_speculative_tokens for all loads")


@rule("GS820", "error")
def table_against_others(subject: Subject) -> Iterator[Issue]:
    """What takes the table away from vLLM, or chooses k against it."""
    spec = subject.profile.speculative
    if not spec or not spec.k_by_requests:
        return
    given = subject.command.argument("--data-parallel-size")
    if given and subject.command.number("--data-parallel-size") != 1:
        message = (
            f"with data parallelism vLLM drops the table and drafts {subject.resolved.tokens} tokens at every load"
        )
        yield Issue(path=given.path, message=message, fix="remove --data-parallel-size or k_by_requests")
    if spec.enable_adaptive_verification:
        path = ("speculative", "enable_adaptive_verification")
        yield Issue(path=path, message="it chooses k by itself, against k_by_requests", fix="remove one of them")


@rule("GS822", "warning")
def table_not_compared(subject: Subject) -> Iterator[Issue]:
    """A table of k on a GPU with another method than mtp, whose answers were compared with those of a fixed k."""
    if (
        not subject.machine.gpus
        or not _table(subject)
        or subject.resolved.method == "mtp"
        or _why_not(subject, _table(subject))
    ):
        return
    message = f"on a GPU nobody has compared the answers of {subject.resolved.method} with those of a fixed k"
    yield Issue(path=_KEY, message=message, fix="gemmaspec bench --help    # measure it against the best single k")


def _table(subject: Subject) -> dict[int, int]:
    spec = subject.profile.speculative
    if spec:
        return dict(spec.k_by_requests or {})
    return {}


def _why_not(subject: Subject, table: dict[int, int]) -> str:
    """Return why a table does not hold under this release, model runner and method; "" where nothing is known."""
    gpu, vllm = subject.machine.gpus, Version(subject.vllm)
    method, runner = subject.resolved.method, subject.resolved.runner
    if vllm < Version("0.24.0"):
        return f"vLLM {subject.vllm} has no {_FIELD}; 0.24.0 is the first that has it"
    if gpu and runner == "v1":
        return (
            "model runner v1 gives up full CUDA graphs for a table of k; on an H200 with 0.26.0 a step then took two "
            "to five times as long"
        )
    if runner == "v2" and (vllm < Version("0.32.0") or method in _CUT):
        return (
            f"vLLM {subject.vllm} with {method} and model runner v2 drafts {subject.resolved.tokens} tokens at every "
            "load and drops those beyond the table, so drafting gets no cheaper"
        )
    if runner == "v1" and method != "draft_model" and 0 in table.values():
        return (
            f"a k of 0 with {method} and model runner v1 gave wrong tokens in 4 of 28 answers when the number of "
            "requests changed (vLLM 0.32.0 on a CPU)"
        )
    return ""
