"""How vLLM detects a draft's method, by release (SpeculativeConfig.__post_init__ in vllm/config/speculative.py).

What works for Gemma 4 in which vLLM release.

No code states this: drafting.yaml is written by hand, each part with its source.

Where a thing exists, as runs of releases: "0.19.0-0.27.1", or "0.22.0-" when the newest release still has it.

Which transformers releases run Gemma 4 with which vLLM releases.

Which model runner vLLM uses for a Gemma 4; lint and fit share this answer.

VllmConfig.use_v2_model_runner in vllm/config/vllm.py: VLLM_USE_V2_MODEL_RUNNER if it is set; else v1 without Triton, or
if v2 does not support a requested feature; else v2, for the models that the release uses it for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from gemmaspec.core import launcher, strict_yaml

HybridManager = Literal["on", "off", "any"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to speculate that works for a Gemma 4 target in some releases, and its requirements."""

    method: str
    versions: str
    hybrid_manager: HybridManager = "any"
    """The required setting of the hybrid KV cache manager."""
    patches: tuple[str, ...] = ()
    """Shipped patches without which vLLM does not start, or dies."""
    patches_when: tuple[tuple[str, str], ...] = ()
    """Further patches, each with the condition under which it is needed."""
    note: str = ""


TABLE: Final = Path(__file__).with_suffix(".yaml")
_ROWS: Final = strict_yaml.table(TABLE)


def _method(row: Mapping[str, Any]) -> Method:
    lists = {"patches": tuple(row.get("patches", ())), "patches_when": tuple(row.get("patches_when", {}).items())}
    return Method(**{**row, **lists})


METHODS: Final = tuple(map(_method, _ROWS["methods"]))
KEYS_OF_METHODS: Final[Mapping[str, Sequence[str]]] = _ROWS["keys_of_methods"]
KEYS_OF_ACCEPTANCE: Final[Mapping[str, str]] = _ROWS["keys_of_acceptance"]
BLOCKS: Final = ("dflash", "dspark")
"""Methods that draft all tokens in one pass."""
FEATURES: Final[Mapping[str, str]] = _ROWS["features"]
"""Flags → what model runner v2 may lack, in vLLM's words."""


def since(method: str) -> str | None:
    """Return the first release in which a method drafts for a Gemma 4 target; None for a method that never does."""
    firsts = (row.versions.removeprefix(">=").partition(",")[0] for row in METHODS if row.method == method)
    return next(firsts, None)


def within(vllm: str, versions: str) -> bool:
    """Return whether a version is in a range, by its release number; one without a number counts as very new."""
    return launcher.range_contains(versions, vllm if vllm[:1].isdigit() else "999")


_BETWEEN: Final = ", "


def write(has: Iterable[str], releases: Sequence[str]) -> str:
    """Return the runs of the releases that have it. `releases` lists all releases, oldest first."""
    having = set(has)
    runs: list[list[str]] = []
    for before, release in zip([None, *releases], releases, strict=False):
        if release not in having:
            continue
        if runs and runs[-1][-1] == before:
            runs[-1].append(release)
        else:
            runs.append([release])
    return _BETWEEN.join(_run(run, releases[-1]) for run in runs)


def read(text: str, releases: Sequence[str]) -> frozenset[str]:
    """Return the releases in a text from `write`. Raise ValueError for any other text."""
    those: set[str] = set()
    for run in text.split(_BETWEEN) if text else []:
        first, dash, last = run.partition("-")
        begin, end = releases.index(first), releases.index(last or (releases[-1] if dash else first))
        those.update(releases[begin : end + 1])
    return frozenset(those)


def at(choices: Mapping[str, str], release: str, releases: Sequence[str]) -> str | None:
    """Return which of several things a release has, of a text from `write` for each; None for none of them."""
    return next((name for name, text in choices.items() if release in read(text, releases)), None)


def words(text: str, releases: Sequence[str]) -> str:
    """Return the same for a message: `from 0.22.0 on`, `up to 0.27.1`, `in all releases from 0.19.0 on`, `nowhere`."""
    oldest = releases[0]
    if not text:
        return f"in no release from {oldest} to {releases[-1]}"
    if text == f"{oldest}-":
        return f"in all releases from {oldest} on"
    return " and ".join(_words(run, oldest) for run in text.split(_BETWEEN))


def _words(run: str, oldest: str) -> str:
    first, dash, last = run.partition("-")
    if not dash:
        return f"in {first} only"
    if not last:
        return f"from {first} on"
    return f"up to {last}" if first == oldest else f"from {first} to {last}"


def _run(run: Sequence[str], newest: str) -> str:
    if run[-1] == newest:
        return f"{run[0]}-"
    return run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}"


TRANSFORMERS_BY_VLLM: Final = tuple(_ROWS["transformers"].items())
"""(vLLM releases, transformers releases)."""
ASSISTANTS_FROM: Final = "5.8.0"
"""The first transformers with Gemma 4's MTP head (vLLM 0.21's tests/models/registry.py)."""


def transformers_for(vllm: str) -> str | None:
    """Return the transformers range for one released vLLM; None for a release that is not in the table."""
    return next((bound for releases, bound in TRANSFORMERS_BY_VLLM if launcher.range_contains(releases, vllm)), None)


_BY_PATH: Final = tuple(map(tuple, _ROWS["by_path"]))
HEAD_FORMATS: Final = tuple(map(tuple, _ROWS["head_formats"]))
"""`speculators_model_type`, the name of such a head, and the first release that reads it for a Gemma 4."""
_TAKES_HEADS: Final = ">=0.21"
_ASSISTANT: Final = re.compile(r"assistant", re.IGNORECASE)


def found_in_path(path: str, vllm: str | None = None) -> tuple[str, str, str] | None:
    """Return the part of a draft's path from which vLLM derives a method, that method, and its first release.

    `vllm` restricts the answer to one release; None means any. Return None if no part of the path decides.
    """
    rows = (row for row in _BY_PATH if row[0] in path.lower() and (vllm is None or within(vllm, f">={row[2]}")))
    return next(rows, None)


def method_found(path: str) -> str:
    """Return the method that vLLM drafts with when a config names a draft and no method, as far as its name says it."""
    by_path = found_in_path(path)
    return by_path[1] if by_path else "mtp" if _ASSISTANT.search(path) else "draft_model"


def keeps_method(method: str, vllm: str) -> bool:
    """Return whether vLLM keeps a method, whatever the draft's path."""
    return any(taken == method and within(vllm, f">={since}") for _, taken, since in _BY_PATH)


def method_run(method: str | None, vllm: str, *, head: str | None, called: str | None) -> str | None:
    """Return the method that vLLM drafts with if a profile sets `method`.

    From 0.21 on, vLLM detects EAGLE-3 and DFlash heads and Gemma 4 assistants, even if the profile sets draft_model or
    mtp. `head` is the method of the draft's checkpoint, if it was read and is a head. `called` is the draft's name if
    the checkpoint was not read, else None.
    """
    if not within(vllm, _TAKES_HEADS):
        return method
    if method in ("draft_model", "mtp") and head:
        return head
    if method == "draft_model" and called and _ASSISTANT.search(called):
        return "mtp"
    return method


def shortens(method: str | None, vllm: str, runner: str) -> bool:
    """Return whether a draft's longest context becomes the server's (VllmConfig._limit_max_model_len_to_draft)."""
    return method == "draft_model" and runner == "v2" and within(vllm, ">=0.33")


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
RUNNERS: Final = tuple(
    RunnerRule(**{**row, "v1_methods": frozenset(row.get("v1_methods", ())), "v1_when": tuple(row.get("v1_when", ()))})
    for row in _ROWS["runners"]
)


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
    return "v1" if variable.lower() in _OFF else "v2"


def runs(rule: RunnerRule, given: RunnerInput) -> RunnerName:
    """Return the model runner that will run. vLLM implements DSpark only in v2 and always uses that for it."""
    if given.forced:
        return given.forced
    if given.method == "dspark":
        return "v2"
    chosen = rule.mixture if given.mixture else rule.dense
    return "v1" if chosen == "v1" or falls_back(rule, given) else "v2"


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
