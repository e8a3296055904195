"""GS82x: a k that changes while the server runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.lint.rule import Issue, Path, rule
from gemmaspec.lint.subject import Subject
from gemmaspec.releases.live_k import SHOWN, live_k_shown

_KEY: Final[Path] = ("speculative", "live_k")


@rule("GS820", "error")
def not_shown(subject: Subject) -> Iterator[Issue]:
    """A k that changes while the server runs, where nobody has shown that vLLM obeys it at no cost."""
    gpu, method = subject.machine.gpus, subject.method
    if not _wanted(subject) or live_k_shown(subject.vllm, runner=subject.runner, method=method, gpu=gpu):
        return
    there = "a GPU" if gpu else "a CPU"
    known = ", ".join(f"{row.method} ({row.versions}, model runner {row.runner})" for row in SHOWN if row.gpu == gpu)
    message = (
        f"changing k was never shown to work in a running vLLM {subject.vllm} with {method} and model runner "
        f"{subject.runner} on {there}. It was shown for {known or 'no method'}"
    )
    yield Issue(path=_KEY, message=message, fix="remove it, and restart the server to change k")


@rule("GS821", "error")
def does_not_go_together(subject: Subject) -> Iterator[Issue]:
    """What takes the table of k, its graphs or the scheduler away from `live_k`."""
    if not _wanted(subject):
        return
    for path, message, fix in _obstacles(subject):
        yield Issue(path=path, message=message, fix=fix)


def _wanted(subject: Subject) -> bool:
    spec = subject.profile.speculative
    return bool(spec and spec.live_k)


def _obstacles(subject: Subject) -> Iterator[tuple[Path, str, str]]:
    spec = subject.profile.speculative
    if given := subject.argument("--scheduler-cls"):
        yield given.path, "live_k brings its own scheduler, and vLLM takes the last one named", "remove one of them"
    for flag in ("--data-parallel-size", "--pipeline-parallel-size"):
        given = subject.argument(flag)
        if given and subject.number(flag) != 1:
            message = f"live_k was not shown with {flag}; with data parallelism vLLM drops the table of k"
            yield given.path, message, f"remove {flag} or live_k"
    if spec and spec.enable_adaptive_verification:
        message = "adaptive verification chooses k by itself, against live_k"
        yield ("speculative", "enable_adaptive_verification"), message, "remove one of them"
    most = subject.number("--max-num-seqs")
    if subject.machine.gpus and most is not None and most < subject.tokens + 1:
        message = (
            f"is {most}: vLLM captures decode graphs for a k of its table up to row {most} only, and live_k has a row "
            f"for each k from {subject.tokens} to 0"
        )
        yield ("serve", "max_num_seqs"), message, f"write {subject.tokens + 1} or more, or remove live_k"


RULES: Final = (not_shown, does_not_go_together)
