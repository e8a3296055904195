"""Which model runner vLLM uses for a Gemma 4; lint and fit share this answer.

VllmConfig.use_v2_model_runner in vllm/config/vllm.py: VLLM_USE_V2_MODEL_RUNNER if it is set; else v1 without Triton, or
if v2 does not support a requested feature; else v2, for the models that the release uses it for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from gemmaspec.core.releases.drafting import ROWS, within

RunnerName = Literal["v1", "v2"]
_OFF: Final = ("0", "false", "off", "no")


@dataclass(frozen=True, kw_only=True)
class RunnerRule:
    """The model runner of a Gemma 4 on a GPU with Triton, if VLLM_USE_V2_MODEL_RUNNER is not set."""

    versions: str
    dense: RunnerName
    """31B, 12B, E4B, E2B."""
    mixture: RunnerName
    """26B-A4B, a mixture of experts."""
    v1_methods: frozenset[str] = frozenset()
    """Speculative methods for which vLLM falls back from v2 to v1."""
    v1_when: tuple[str, ...] = ()
    """Other reasons to fall back."""


_KEYS: Final = frozenset({"parallel_drafting", "use_heterogeneous_vocab", "--runner pooling"})
"""Options that count where `v1_when` names them; all others are features that the release's v2 lacks."""


def _rule(row: Mapping[str, Any]) -> RunnerRule:
    methods, when = row.get("v1_methods", ()), row.get("v1_when", ())
    return RunnerRule(**{**row, "v1_methods": frozenset(methods), "v1_when": tuple(when)})


RUNNERS: Final = tuple(map(_rule, ROWS["runners"]))


def runner_for(vllm: str) -> RunnerRule:
    """Return the rule of one vLLM release; the newest rule for a release without Gemma 4."""
    matching = (rule for rule in RUNNERS if within(vllm, rule.versions))
    return next(matching, RUNNERS[-1])


@dataclass(frozen=True, kw_only=True)
class RunnerInput:
    """Everything in a start that affects the choice of the model runner."""

    mixture: bool
    """Whether the target is a mixture of experts."""
    triton: bool
    """Whether Triton is available: on a GPU, but not on a CPU."""
    forced: RunnerName | None = None
    """The value of VLLM_USE_V2_MODEL_RUNNER."""
    method: str | None = None
    """The speculative method that vLLM drafts with (drafting.method_run); None without speculation."""
    stages: int = 1
    """pipeline_parallel_size."""
    options: frozenset[str] = frozenset()
    """Keys that are on, and features that the release's v2 lacks, in vLLM's words (profile/graphs.py)."""


def forced_by(variable: str | None) -> RunnerName | None:
    """Return the model runner that a value of VLLM_USE_V2_MODEL_RUNNER selects; None if it is not set."""
    if variable is None:
        return None
    if variable.lower() in _OFF:
        return "v1"
    return "v2"


def runs(rule: RunnerRule, given: RunnerInput) -> RunnerName:
    """Return the model runner that will run. vLLM implements DSpark only in v2 and always uses that for it."""
    if given.forced:
        return given.forced
    if given.method == "dspark":
        return "v2"
    chosen = rule.mixture if given.mixture else rule.dense
    if chosen == "v1" or falls_back(rule, given):
        return "v1"
    return "v2"


def falls_back(rule: RunnerRule, given: RunnerInput) -> str | None:
    """Return, in words, why vLLM uses v1 instead of v2; None if it does not."""
    if not given.triton:
        return "without a GPU there is no Triton"
    if lacking := sorted(given.options - _KEYS):
        return f"v2 does not support {lacking[0]}"
    for key in sorted(_KEYS & given.options):
        if key in rule.v1_when:
            return f"v2 does not support {key}"
    if given.method is None:
        return None
    if given.method in rule.v1_methods:
        return f"v2 does not support {given.method}"
    if given.method == "eagle3" and given.stages > 1 and "eagle3 with pipeline parallelism" in rule.v1_when:
        return "v2 does not support eagle3 with pipeline parallelism"
    return None
