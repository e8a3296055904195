"""Which model runner vLLM uses."""

from __future__ import annotations

from typing import Final

from gemmaspec.checkpoint.model import Checkpoint
from gemmaspec.fit.flags import Flags
from gemmaspec.releases.gemma4 import runner_for

_OFF: Final = ("0", "false", "off", "no")


def first_runner(target: Checkpoint, flags: Flags) -> bool:
    """Whether vLLM runs its first model runner."""
    if flags.forced_runner is not None:
        return flags.forced_runner.lower() in _OFF
    rule = runner_for(flags.vllm)
    chosen = rule.mixture if target.text.experts else rule.dense
    return chosen == "v1" or flags.method in rule.v1_methods
