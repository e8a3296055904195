"""GS5xx: what depends on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.check.lint.rule import Issue, Path, Subject, rule
from gemmaspec.core.finding import Severity
from gemmaspec.core.profile.graphs import COST, FAST, LOST, hurts
from gemmaspec.core.resolved.answer import known

SLOW: Final = frozenset({"GS501"})
"""Codes of what is slow, and starts."""
_MEASURED: Final = "on an H200, vLLM 0.26.0, NVFP4, 0.7 accepted at each position"
SEVERAL_ON_SPARK: Final = (
    "eight requests to a 26B-A4B on a DGX Spark were faster with 2 drafted tokens than with 4, as published"
)
"""github.com/eugr/spark-vllm-docker, issue 343: 303.6 against 210 tokens per second."""

_EAGER: Final = ("speculative", "enforce_eager")
ONE_BY_ONE: Final = frozenset({"draft_model", "mtp", "eagle", "eagle3"})
"""Methods that draft a token with each pass; a block head drafts all of them with one."""


@rule("GS501", "warning")
def drafts_without_graphs(subject: Subject) -> Iterator[Issue]:
    """A draft that costs more than it saves, because decoding has no full CUDA graphs."""
    profile, spec = subject.profile, subject.profile.speculative
    if not spec or not subject.machine.gpus:
        return
    given = subject.command.argument("--enforce-eager")
    off = bool(given and not given.negated)
    turned_off: list[Path] = []
    if given and off:
        turned_off.append(given.path)
    if spec.enforce_eager:
        turned_off.append(_EAGER)
    if profile.draft:
        for path in turned_off:
            message = f"disables CUDA graphs for the draft; {_MEASURED}, not compiled: 0.39 times the speed of no draft"
            yield Issue(path=path, message=message, fix="remove it, or remove the draft")
    modes = known(subject.resolved.graphs)
    if modes is None or off or modes.path == _EAGER:
        return
    if modes.lost:
        step = modes.target in LOST
        if step:
            lost = "decoding gets no full CUDA graph"
        else:
            lost = "the draft gets no CUDA graph"
        message = f"{lost} ({modes.words()}): {modes.why}"
        if step and modes.draft == "NONE":
            message += f"; {COST}"
        # on slow memory a draft model's step is bound by its bytes, so that missing graphs hardly show
        bytes_count = subject.resolved.method == "draft_model" and not step and not _is_fast(subject)
        measured = subject.resolved.method == "mtp" and (subject.machine.compute_capability or "").startswith("9.")
        severity: Severity | None = None
        if measured and hurts(profile, modes, slow=True):
            severity = "error"
        elif bytes_count:
            severity = "note"
        yield Issue(path=modes.path, message=message, fix=modes.fix, severity=severity)
    elif modes.covers is not None and modes.covers < (most := profile.serve.max_num_seqs or modes.covers):
        tokens = most * (subject.resolved.tokens + 1)
        message = f"these capture sizes have graphs for {modes.covers} requests, and serve.max_num_seqs is {most}"
        yield Issue(path=modes.path, message=message, fix=f"let them reach {tokens:,}: each request takes k+1 tokens")


@rule("GS505", "note")
def many_tokens(subject: Subject) -> Iterator[Issue]:
    """More draft tokens than pay off: of a whole model on fast memory, for several requests to a mixture on a Spark."""
    path, tokens = ("speculative", "num_speculative_tokens"), subject.resolved.tokens
    if subject.resolved.method == "draft_model" and tokens > 2 and _is_fast(subject):
        message = f"is {tokens}; {_MEASURED}: 1.06 times the speed of no draft with 2 tokens, 0.90 with 4"
        yield Issue(path=path, message=message, fix="try 2 and measure")
    several = (subject.command.number("--max-num-seqs") or 0) > 1 and subject.name("draft")
    if not (subject.machine.name == "dgx-spark" and subject.resolved.method in ONE_BY_ONE and tokens > 2 and several):
        return
    if subject.resolved.mixture is True:  # each drafted token brings experts of its own; a dense model is read once
        yield Issue(path=path, message=f"is {tokens}; {SEVERAL_ON_SPARK}", fix="measure 2 too")


@rule("GS504", "warning", any_release=True)
def unified_memory(subject: Subject) -> Iterator[Issue]:
    """Unified memory of which too little is left for the operating system."""
    share = subject.profile.serve.gpu_memory_utilization
    if subject.machine.name == "dgx-spark" and share and share > 0.85:
        message = f"is {share:g} of 121.69 GiB, but an idle DGX Spark has about 102 GiB free"
        yield Issue(path=("serve", "gpu_memory_utilization"), message=message, fix="set 0.85 or less")
    given = subject.command.argument("--load-format")
    if given and given.value == "fastsafetensors" and subject.machine.name == "dgx-spark":
        message = "takes memory for whole files in addition to the weights, and DGX Sparks were seen to freeze"
        yield Issue(path=given.path, message=message, fix="remove it")


_CUDA_ONLY: Final = {
    "--enable-sleep-mode": "Sleep mode is not supported on current platform",
    "--enable-cumem-allocator": "cumem allocator is not supported on current platform",
}
"""Flags that ModelConfig refuses without CUDA, with its words."""


@rule("GS231", "error")
def without_gpus(subject: Subject) -> Iterator[Issue]:
    """What vLLM cannot do without GPUs: dspark (runner v1 lacks it, v2 needs Triton: VllmConfig), CUDA's allocator."""
    if subject.machine.gpus:
        return
    if subject.resolved.method == "dspark":
        message = f"dspark needs model runner v2, and that Triton and a GPU; vLLM {subject.vllm} stops without"
        yield Issue(path=("speculative", "method"), message=message, fix="use mtp, or a machine with a GPU")
    for name, words in _CUDA_ONLY.items():
        given = subject.command.argument(name)
        if given and not given.negated:
            yield Issue(path=given.path, message=f"{name} needs CUDA: {words}", fix="remove it")


def _is_fast(subject: Subject) -> bool:
    return (subject.machine.bandwidth_gb_s or 0) > FAST
