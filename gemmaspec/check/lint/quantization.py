"""GS102, GS223 and GS230: the quantization of the profile, of the checkpoint and of the release.

Which method vLLM takes: ModelConfig._verify_quantization (config/model.py, every release). The answers of
0.32.0 for each method of a checkpoint with each value of --quantization were recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.check.lint.known_values import one_of
from gemmaspec.check.lint.rule import Issue, Path, Role, Subject, rule
from gemmaspec.core.checkpoint.fields import printable
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.releases.facts import knows_method, spans

ROLES: Final[tuple[Role, ...]] = ("target", "draft")
_DEPRECATED: Final = "--allow-deprecated-quantization"
_FAMILIES: Final = {
    "awq": frozenset({"awq", "awq_marlin", "auto_awq", "cpu_awq", "moe_wna16"}),
    "gptq": frozenset({"gptq", "gptq_marlin", "auto_gptq", "moe_wna16"}),
    "fp8": frozenset({"fp8", "deepseek_v4_fp8"}),
    **{name: frozenset({name}) for name in ("compressed-tensors", "bitsandbytes", "torchao")},
}
"""The checkpoint's method → the values of --quantization that vLLM takes with it, `humming` apart."""
_BEFOREHAND: Final = frozenset(
    {
        *("modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "compressed-tensors", "quark", "inc"),
        *_FAMILIES["awq"],
        *_FAMILIES["gptq"],
    }
)
"""Quantizations whose weights were quantized beforehand; the others quantize while loading."""


_CONFIGURED: Final = frozenset({"torchao", "online"})
"""Quantizations whose class cannot be made without a configuration: a TypeError, from 0.26.0."""


def _models(subject: Subject) -> Iterator[tuple[Role, str, str | None]]:
    """Yield each model whose quantization the profile names: role, that name, and the checkpoint's own method."""
    for role in ROLES:
        if asked := _asked(subject, role):
            yield role, asked, _own(subject.checkpoint(role))


def _asked(subject: Subject, role: Role) -> str | None:
    if role == "target":
        return subject.command.value("--quantization")
    draft = subject.profile.draft
    if draft:
        return draft.quantization
    return None


def _path(subject: Subject, role: Role) -> Path:
    """Return where a quantization is set: a key, or a word of `extra_args`."""
    if role == "target":
        given = subject.command.argument("--quantization")
    else:
        given = None
    if given:
        return given.path
    return (role, "quantization")


def _own(checkpoint: Checkpoint | None) -> str | None:
    if checkpoint and checkpoint.quantization:
        return checkpoint.quantization.method
    return None


def _taken_over(declared: str | None) -> bool:
    """Return whether vLLM takes the checkpoint's own method, whatever the profile names."""
    return declared is not None and declared.startswith(("modelopt", "auto-round", "inc"))


@rule("GS102", "error")
def unknown_quantization(subject: Subject) -> Iterator[Issue]:
    """A quantization that vLLM does not know, or no longer takes without being told to."""
    known = subject.resolved.facts.quantizations
    for role, asked, declared in _models(subject):
        if asked not in known and not _taken_over(declared):
            message = f"vLLM {subject.vllm} does not know the quantization {asked!r}"
            fix = one_of(asked, known) + "; or remove it, because the checkpoint names it"
            yield Issue(path=_path(subject, role), message=message, fix=fix)
        elif (
            not _taken_over(declared)
            and asked in subject.resolved.facts.deprecated_quantizations
            and not subject.command.switched(_DEPRECATED)
        ):
            message = f"vLLM {subject.vllm} will drop the quantization {asked}, and stops without {_DEPRECATED}"
            fix = f"add {_DEPRECATED} to serve.extra_args, or use another quantization"
            yield Issue(path=_path(subject, role), message=message, fix=fix)


@rule("GS223", "error")
def other_quantization(subject: Subject) -> Iterator[Issue]:
    """A quantization that the checkpoint does not have, or has from another tool."""
    for role, asked, declared in _models(subject):
        if subject.checkpoint(role) is None or asked == "humming":
            continue
        if declared is None and asked in _BEFOREHAND:
            message = f"is {asked}, but the checkpoint is not quantized: Cannot find the config file"
        elif (
            declared is None
            and asked in _CONFIGURED
            and not subject.command.given("--quantization-config", "--hf-overrides")
        ):
            message = f"is {asked}, which wants a configuration that neither the checkpoint nor a flag brings"
        elif declared in _FAMILIES and asked not in _FAMILIES[declared]:
            message = f"is {asked}, but the checkpoint declares {declared}, and vLLM rejects the mismatch"
        else:
            continue
        yield Issue(path=_path(subject, role), message=message, fix="remove it, because the checkpoint declares it")


@rule("GS230", "error")
def checkpoint_too_old(subject: Subject) -> Iterator[Issue]:
    """A checkpoint whose own quantization the release does not know, or no longer."""
    for role in ROLES:
        declared = _own(subject.checkpoint(role))
        if declared is None or declared == "unknown" or _asked(subject, role) == "humming":
            continue
        if not knows_method(declared, subject.resolved.facts.vllm):
            span = spans("quantization", declared)
            yield Issue(
                path=(role, "model"),
                message=f"vLLM {subject.vllm} does not know the checkpoint's quantization, {printable(declared, 40)}"
                f"{f' (known {span})' if span else ''}",
                fix="use a release that knows it, or another checkpoint" if span else "use another checkpoint",
            )
