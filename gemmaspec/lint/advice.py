"""Settings that start, and that others found to cost speed, answers or the machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.lint.rule import Issue, rule
from gemmaspec.lint.subject import Subject

_RECALLS: Final = 32_768
_BLOCK_DRAFTERS: Final = ("dflash", "dspark")


@rule("GS507", "note")
def older_runner(subject: Subject) -> Iterator[Issue]:
    """The 26B-A4B with MTP on model runner v1 of 0.25 to 0.28, where v2 was half as fast again (#48848)."""
    if subject.method == "mtp" and subject.is_mixture and subject.runner == "v1" and subject.runs(">=0.25,<0.29"):
        message = (
            f"vLLM {subject.vllm} runs a mixture of experts on model runner v1; with v2 the 26B-A4B and its assistant "
            "made 312 tokens/s in place of 205 on an RTX PRO 6000"
        )
        yield Issue(path=("env",), message=message, fix="set env: {VLLM_USE_V2_MODEL_RUNNER: '1'}, or use vLLM 0.29")


@rule("GS318", "warning")
def forgetful_cache(subject: Subject) -> Iterator[Issue]:
    """An INT8 KV cache with a scale per token and head forgets what lies far back (club-3090 #538)."""
    given, length = subject.argument("--kv-cache-dtype"), subject.length
    if given and given.value == "int8_per_token_head" and length and length > _RECALLS:
        message = f"is {given.value}, and a server was seen to recall nothing from beyond {_RECALLS:,} tokens with it"
        yield Issue(path=given.path, message=message, fix=f"use fp8, or serve.max_model_len: {_RECALLS}")


@rule("GS319", "note")
def block_drafter_with_prefix_cache(subject: Subject) -> Iterator[Issue]:
    """Prefix caching with a head that drafts blocks: its acceptance was seen to collapse after hits (#47930)."""
    given = subject.argument("--enable-prefix-caching")
    if subject.method in _BLOCK_DRAFTERS and subject.machine.gpus and given and not given.negated:
        message = f"after a hit in the prefix cache, the acceptance of {subject.method} heads was seen to collapse"
        yield Issue(path=given.path, message=message, fix="compare both with repeated prompts, and keep watch running")


@rule("GS508", "warning")
def loader_on_unified_memory(subject: Subject) -> Iterator[Issue]:
    """fastsafetensors on a DGX Spark: memory for whole files in addition to the weights froze such machines."""
    given = subject.argument("--load-format")
    if given and given.value == "fastsafetensors" and subject.machine.name == "dgx-spark":
        message = "takes memory for whole files in addition to the weights, and DGX Sparks were seen to freeze"
        yield Issue(path=given.path, message=message, fix="remove it")


RULES: Final = (older_runner, forgetful_cache, block_drafter_with_prefix_cache, loader_on_unified_memory)
