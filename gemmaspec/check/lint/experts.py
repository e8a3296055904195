"""GS222: experts that several GPUs cannot share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.check.lint.rule import Issue, Subject, rule

_EXPERT: Final = 704
"""Width of an expert of the 26B-A4B."""

_BY_MARLIN: Final = ("8.0", "8.6")
"""Compute capabilities that run FP8 weights by Marlin."""


@rule("GS222", "error", any_release=True)
def split_experts(subject: Subject) -> Iterator[Issue]:
    """Parts of an expert that no kernel takes: NVFP4 (vllm#39595), and FP8 by Marlin (vllm#42390, two RTX 3090)."""
    given = subject.command.argument("--tensor-parallel-size")
    gpus = subject.command.number("--tensor-parallel-size") or 1
    whole = subject.command.argument("--enable-expert-parallel")
    if given is None or gpus < 2 or subject.resolved.mixture is not True or (whole and not whole.negated):
        return
    format_ = _format_of_experts(subject)
    if format_ != "NVFP4" and not (format_ == "FP8" and subject.machine.compute_capability in _BY_MARLIN):
        return
    message = (
        f"leaves each of {gpus} GPUs {_EXPERT // gpus} columns of an expert, for which vLLM has no {format_} kernel"
    )
    fix = "use 1 and replicas, or keep the experts whole: serve.extra_args: [--enable-expert-parallel]"
    yield Issue(path=given.path, message=message, fix=fix)


def _format_of_experts(subject: Subject) -> str:
    """Return what the target's experts are stored in, by its own declaration or its name; "" for another format."""
    if subject.resolved.target:
        quantization = subject.resolved.target.quantization
    else:
        quantization = None
    said = (quantization.algorithm or "") if quantization else ""
    if subject.resolved.target is None:
        said = subject.called("target").upper()
    return next((format_ for format_ in ("NVFP4", "FP8") if format_ in said), "")
