"""What a server takes of a machine's memory, and how it is spread over GPUs, as flags and variables say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from packaging.version import Version

from gemmaspec.core.profile.command import Command
from gemmaspec.core.profile.device import GIB
from gemmaspec.core.profile.fields import Speculative
from gemmaspec.core.resolved.answer import Unknown

_SHARE: Final = "--gpu-memory-utilization"
_CACHE: Final = ("--kv-cache-memory-bytes", "--kv-cache-memory")
_CPU_CACHE: Final = "VLLM_CPU_KVCACHE_SPACE"


def share_of(command: Command, vllm: str) -> float | Unknown:
    """Return gpu_memory_utilization, which vLLM requires to be free when it starts."""
    given = command.value(_SHARE)
    if given is None:
        return 0.92 if Version(vllm) >= Version("0.20.0") else 0.9
    try:
        return float(given)
    except ValueError:
        return Unknown(f"{_SHARE} is {given[:40]!r}")


def given_cache_of(command: Command, env: Mapping[str, str], *, cpu: bool) -> int | Unknown | None:
    """Return the bytes of the KV cache that the profile sets; None where vLLM measures what is left.

    For a GPU that is --kv-cache-memory-bytes (Worker.determine_available_memory in vllm/v1/worker/gpu_worker.py,
    0.32.0), and for a CPU a variable, in GiB.
    """
    if cpu:
        space = env.get(_CPU_CACHE, "")
        return int(space) * GIB if space.isdecimal() and int(space) else None
    given = [flag for flag in _CACHE if command.value(flag) is not None]
    if not given:
        return None
    number = command.number(given[0])
    if number is None:
        text = (command.value(given[0]) or "")[:40]
        return Unknown(f"{_CACHE[0]} {text!r} is not a number of bytes, such as 2700M")
    return number


def asynchronous(command: Command, spec: Speculative | None, vllm: str, *, cpu: bool) -> bool:
    """Return whether scheduling is asynchronous (vllm/config/vllm.py): unless the method forbids it.

    It is not on a CPU (vllm/platforms/cpu.py).
    """
    if cpu:
        return False
    wanted = command.switched("--async-scheduling")
    if wanted is not None:
        return wanted
    if spec is None:
        return True
    unable = {"suffix"} if Version(vllm) >= Version("0.33.0") else {"suffix", "ngram"}
    return spec.method not in unable and not spec.disable_padded_drafter_batch
