"""GS810, GS811: whether a head was trained with its target. GS233, GS234: exact names, and Google's 12B."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gemmaspec.check.lint.rule import Issue, Subject, rule
from gemmaspec.core.checkpoint.published.shipped import draft_for
from gemmaspec.core.checkpoint.training import is_qat, trained_further

_HEADS: Final = ("mtp", "eagle", "eagle3", "dflash", "dspark")
_ACCEPTED: Final = (
    "published for a 31B of QAT with the ordinary assistant: 2.3 tokens a step with 3 drafted (64, 39 and 25 % of them "
    "accepted), where another 4-bit target had 3.9"
)
EXACT_NAMES: Final = "draft-exact-names"
"""The patch that GS233 requires."""
_OF_ENCODERS: Final = re.compile(r"_tower|embed_(vision|audio)")
_SOFT_TOKENS: Final = "num_soft_tokens"
_OVERRIDE: Final = '--hf-overrides, \'{"vision_config": {"num_soft_tokens": 280}}\''


@rule("GS810", "warning")
def head_of_another_training(subject: Subject) -> Iterator[Issue]:
    """A head of a target that was trained with its quantization, for one that was not, or the other way round."""
    target, head = subject.name("target"), subject.name("draft")
    if subject.resolved.method not in _HEADS or not head or is_qat(target) is is_qat(head):
        return
    told = "the target was trained with its quantization (QAT), and the draft for a model that was not"
    if is_qat(head):
        told = "the draft is for a target that was trained with its quantization (QAT), and this one was not"
    fitting = draft_for(target)
    if fitting:
        fix = f"draft: {{model: {fitting}}}"
    else:
        fix = "use the draft of the same training"
    yield Issue(path=("draft", "model"), message=f"{told}; {_ACCEPTED}", fix=fix)


@rule("GS811", "note")
def target_trained_further(subject: Subject) -> Iterator[Issue]:
    """A target that others have trained further, with a head of the model that it was before."""
    if subject.resolved.method not in _HEADS or not subject.profile.draft:
        return
    why = trained_further(subject.name("target"), subject.resolved.target)
    if why is None or trained_further(subject.name("draft"), subject.resolved.draft):
        return
    message = f"{why}: the target was trained further, the draft was not, so fewer of its tokens may be accepted"
    fix = f"measure it before you rely on it: gemmaspec bench {subject.profile.name} --acceptance"
    yield Issue(path=("draft", "model"), message=message, fix=fix)


@rule("GS233", "error")
def exact_names_of_a_draft(subject: Subject) -> Iterator[Issue]:
    """A draft model whose configuration names modules exactly, without the patch: vLLM builds it below `draft_model.`.

    should_ignore_layer compares by equality but for expressions (compressed_tensors/utils.py, every release).
    """
    draft = subject.resolved.draft
    quantization = draft.quantization if draft else None
    if subject.resolved.method != "draft_model" or not quantization or quantization.method != "compressed-tensors":
        return
    no_expressions = [name for name in quantization.excluded if not name.startswith("re:")]
    exact = [name for name in no_expressions if _OF_ENCODERS.search(name)]
    if exact and EXACT_NAMES not in subject.profile.patches.required:
        message = (
            f"its ignore list names {len(exact)} modules of the encoders exactly, and vLLM builds a draft model below "
            "draft_model., where no exact name matches: it takes them for quantized and cannot load them"
        )
        fix = (
            f"add {EXACT_NAMES} to patches.required; or, in a copy of the checkpoint, write re:.*vision_tower.*, "
            "re:.*audio_tower.* and re:.*embed_(vision|audio).* into quantization_config.ignore of config.json"
        )
        yield Issue(path=("draft", "model"), message=message, fix=fix)


@rule("GS234", "error")
def soft_tokens(subject: Subject) -> Iterator[Issue]:
    """A 12B whose configuration lacks num_soft_tokens (gemma4_unified.py reads it without a default, every release)."""
    target = subject.resolved.target
    if target is None or target.model_type != "gemma4_unified" or subject.resolved.images is not True:
        return
    vision = target.config.get("vision_config")
    lacks = isinstance(vision, dict) and _SOFT_TOKENS not in vision
    assumed = target.source == "shipped" and not is_qat(target.ref)
    if lacks and not assumed and _SOFT_TOKENS not in (subject.command.value("--hf-overrides") or ""):
        message = f"its vision_config lacks {_SOFT_TOKENS}, which vLLM {subject.vllm} reads without a default"
        fix = f"add serve.extra_args: [{_OVERRIDE}], or serve no images: serve.language_model_only: true"
        yield Issue(path=("target", "model"), message=message, fix=fix)
