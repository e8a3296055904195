"""GS5xx: what depends on the machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.lint.rule import Issue, rule
from gemmaspec.lint.subject import Subject
from gemmaspec.profile.graphs import COST, FAST, LOST, graph_modes, hurts

_MEASURED: Final = "on an H200, vLLM 0.26.0, NVFP4, 0.7 accepted at each position"

_EAGER: Final = ("speculative", "enforce_eager")


@rule("GS501", "warning")
def drafts_without_graphs(subject: Subject) -> Iterator[Issue]:
    """Decoding without full CUDA graphs, in which a draft loses."""
    spec = subject.profile.speculative
    if not spec or not subject.machine.gpus:
        return
    given = subject.argument("--enforce-eager")
    eager = ((given.path if given else (), given and not given.negated), (_EAGER, spec.enforce_eager))
    for path, on in eager if subject.profile.draft else ():
        if on:
            message = f"disables CUDA graphs for the draft; {_MEASURED}, not compiled: 0.39 times the speed of no draft"
            yield Issue(path=path, message=message, fix="remove it, or remove the draft")
    profile = subject.profile
    modes = graph_modes(profile, subject.facts.vllm, fp8=subject.caches_fp8, masks=subject.masks)
    if modes is None or (given and not given.negated):
        return
    if modes.target in LOST or (modes.draft == "NONE" and subject.method not in (None, "draft_model")):
        head = modes.draft == "NONE"  # that loss was measured; a method without layers of its own was not
        lost = "decoding gets no full CUDA graph" if modes.target in LOST else "the draft gets no CUDA graph"
        message = f"{lost} ({modes.words()}): {modes.why}" + (f"; {COST}" if head and modes.target in LOST else "")
        certain = hurts(profile, modes, slow=True)
        if not (spec.enforce_eager and modes.path == _EAGER):
            yield Issue(path=modes.path, message=message, fix=modes.fix, severity="error" if certain else None)
    elif modes.covers is not None and modes.covers < (most := profile.serve.max_num_seqs or modes.covers):
        tokens = most * (subject.tokens + 1)
        message = f"these capture sizes have graphs for {modes.covers} requests, and serve.max_num_seqs is {most}"
        yield Issue(path=modes.path, message=message, fix=f"let them reach {tokens:,}: each request takes k+1 tokens")


@rule("GS502", "note")
def drafter_without_graphs(subject: Subject) -> Iterator[Issue]:
    """A release that always runs the draft model without CUDA graphs."""
    if subject.method != "draft_model" or not subject.machine.gpus or subject.switched("--enforce-eager"):
        return
    if subject.runs("<0.26"):
        fix = "vLLM 0.26 to 0.30 capture graphs for it"
    elif subject.runs(">=0.31") and subject.runner == "v2":
        fix = "vLLM 0.26 to 0.30 capture graphs for it, and so does env: {VLLM_USE_V2_MODEL_RUNNER: '0'} here"
    else:
        return
    message = f"the draft model runs without CUDA graphs in vLLM {subject.vllm} (model runner {subject.runner})"
    loses = ", which makes speculation slower than none on memory this fast"
    yield Issue(
        path=("speculative", "method"),
        message=message + loses if _is_fast(subject) else message,
        fix=fix,
        severity="warning" if _is_fast(subject) else None,
    )


@rule("GS503", "note")
def many_tokens(subject: Subject) -> Iterator[Issue]:
    """More draft tokens than pay off on a machine with fast memory."""
    if subject.method == "draft_model" and subject.tokens > 2 and _is_fast(subject):
        message = f"is {subject.tokens}; {_MEASURED}: 1.06 times the speed of no draft with 2 tokens, 0.90 with 4"
        yield Issue(path=("speculative", "num_speculative_tokens"), message=message, fix="try 2 and measure")


@rule("GS504", "warning", any_release=True)
def unified_memory(subject: Subject) -> Iterator[Issue]:
    """A share of unified memory that leaves too little for the operating system."""
    share = subject.profile.serve.gpu_memory_utilization
    if subject.machine.name == "dgx-spark" and share and share > 0.85:
        message = f"is {share:g} of 121.69 GiB, but an idle DGX Spark has about 102 GiB free"
        yield Issue(path=("serve", "gpu_memory_utilization"), message=message, fix="set 0.85 or less")


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
    if subject.method == "dspark":
        message = f"dspark needs model runner v2, and that Triton and a GPU; vLLM {subject.vllm} stops without"
        yield Issue(path=("speculative", "method"), message=message, fix="use mtp, or a machine with a GPU")
    for name, words in _CUDA_ONLY.items():
        given = subject.argument(name)
        if given and not given.negated:
            yield Issue(path=given.path, message=f"{name} needs CUDA: {words}", fix="remove it")


def _is_fast(subject: Subject) -> bool:
    return (subject.machine.bandwidth_gb_s or 0) > FAST


RULES: Final = (drafts_without_graphs, drafter_without_graphs, many_tokens, unified_memory, without_gpus)
