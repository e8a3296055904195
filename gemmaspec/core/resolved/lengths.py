"""How many tokens and requests a server takes at once: its context, its batch and its sequences."""

from __future__ import annotations

from dataclasses import dataclass

from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.checkpoint.sizes import Size
from gemmaspec.core.profile.command import Command
from gemmaspec.core.profile.device import Device
from gemmaspec.core.releases.batch import BatchDefaults, batch_defaults, default_batch
from gemmaspec.core.resolved.answer import Unknown, known

LENGTH = "--max-model-len"
BATCH = "--max-num-batched-tokens"
SEQUENCES = "--max-num-seqs"


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """max_model_len before a draft shortens it, max_num_batched_tokens and max_num_seqs."""

    length: int | Unknown
    batch: int | Unknown
    sequences: int | Unknown


def lengths_of(
    command: Command,
    vllm: str,
    *,
    target: Checkpoint | None,
    size: Size | None,
    device: Device,
    whole_items: bool,
) -> Lengths:
    """Return what the profile gives, else vLLM's defaults.

    `whole_items`: whether the default batch must hold the largest image or video, of those that the architecture takes,
    also where its limit is 0 (_get_min_mm_batched_tokens in vllm/engine/arg_utils.py).
    """
    length = _length(command, target, size)
    defaults = _defaults(command, vllm, device)
    given = _given(command, SEQUENCES)
    if isinstance(defaults, Unknown):
        return Lengths(
            length=length,
            batch=defaults if (batch := _given(command, BATCH)) is None else batch,
            sequences=defaults if given is None else given,
        )
    batch = _batch(command, vllm, defaults, length, given, whole_items=whole_items)
    return Lengths(length=length, batch=batch, sequences=_sequences(defaults, batch, given))


def _given(command: Command, flag: str) -> int | Unknown | None:
    """Return the number that a flag is given; None where it is not given."""
    if command.argument(flag) is None:
        return None
    number = command.number(flag)
    if number is None:
        return Unknown(f"{flag} is {command.value(flag)!r}")
    return number


def _length(command: Command, target: Checkpoint | None, size: Size | None) -> int | Unknown:
    given = _given(command, LENGTH)
    if given is not None:
        return given
    if target is not None:
        return target.text.max_position_embeddings
    if size is not None:
        return size.context
    return Unknown("the checkpoint was not read, and its name says no size")


def _defaults(command: Command, vllm: str, device: Device) -> BatchDefaults | Unknown:
    if command.given("--performance-mode"):
        return Unknown("--performance-mode changes the defaults")
    if not device.cpu and not device.memory:
        return Unknown(f"the memory of {device.name} is not known")
    stages = command.number("--pipeline-parallel-size") or 1
    shards = command.number("--tensor-parallel-size") or 1
    return batch_defaults(
        vllm,
        memory=device.memory,
        world=stages * shards,
        name=device.name,
        capability=device.capability,
        cpu=device.cpu,
    )


def _batch(
    command: Command,
    vllm: str,
    defaults: BatchDefaults,
    length: int | Unknown,
    sequences: int | Unknown | None,
    *,
    whole_items: bool,
) -> int | Unknown:
    given = _given(command, BATCH)
    if given is not None:
        return given
    if isinstance(sequences, Unknown):
        return sequences
    batch = default_batch(
        defaults.tokens,
        vllm=vllm,
        length=known(length),
        sequences=defaults.sequences if sequences is None else sequences,
        masks=whole_items,
        chunked=command.switched("--enable-chunked-prefill") is not False,
    )
    if batch is None:
        return Unknown("without chunked prefill it hangs on a length that is not known")
    return batch


def _sequences(defaults: BatchDefaults, batch: int | Unknown, given: int | Unknown | None) -> int | Unknown:
    if given is not None:
        return given
    if isinstance(batch, Unknown):
        return defaults.sequences
    return min(defaults.sequences, batch)
