"""Which vLLM release a profile will run, as far as the profile itself states it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gemmaspec.profile.model import Profile

_OPTIMIZATION: Final = re.compile(r"-O=?[0-9]")
_TAG: Final = re.compile(r":[a-z-]*v?([0-9]\.[0-9]+\.[0-9]+)(?:[.-][A-Za-z0-9.-]*)?(?:@.*)?$")


def vllm_of(profile: Profile) -> str | None:
    """Return the release: `runtime.vllm`, else the version in the image's tag; None if neither states it.

    A tag such as cu130-nightly moves, so only the image itself shows its version. 26.01.1 and 2026.11.21 are dates.
    """
    if profile.runtime.vllm:
        return profile.runtime.vllm
    found = _TAG.search(profile.image or "")
    return found[1] if found else None


def can_be_process(profile: Profile) -> bool:
    """Return whether the profile states which vLLM a process would run; a container brings its own."""
    return bool(profile.runtime.vllm or profile.runtime.python)


def compile_of(profile: Profile) -> str:
    """Return how a profile's server compiles: one word, or the value of its flag. It changes the step times.

    `eager`: no graphs; `disabled`: graphs, but nothing compiled; `default`: as vLLM decides.
    """
    if profile.serve.enforce_eager:
        return "eager"
    if asked := _compilation_flag(profile.serve.extra_args):
        return asked
    return "disabled" if profile.env.get("TORCH_COMPILE_DISABLE") == "1" else "default"


def _compilation_flag(arguments: Sequence[str]) -> str | None:
    """Return the last --compilation-config, -cc or -O of a command line, without spaces."""
    found = None
    for index, argument in enumerate(arguments):
        flag, _, value = argument.partition("=")
        if flag.replace("_", "-") in ("--compilation-config", "-cc"):
            value = value or (arguments[index + 1] if index + 1 < len(arguments) else "")
            found = "".join(value.split())
        elif _OPTIMIZATION.fullmatch(argument):
            found = argument
    return found
