"""How vLLM detects a draft's method, by release (SpeculativeConfig.__post_init__ in vllm/config/speculative.py).

What works for Gemma 4 in which vLLM release.

No code states this: it is written by hand, each row with its source.

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
from typing import Final, Literal

from gemmaspec.core import launcher

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


_WINDOWS: Final = ("kv-spec-uniform-valueerror",)
_ONE_GROUP: Final = (*_WINDOWS, "kv-sharing-uniform-specs")
_SEES: Final = "the target accepts images or audio, and model runner v1 runs"

METHODS: Final = (
    Method(method="ngram", versions=">=0.19.0"),
    Method(method="ngram_gpu", versions=">=0.19.0"),
    Method(method="suffix", versions=">=0.19.0", note="needs the package arctic-inference"),
    Method(
        method="draft_model",
        versions=">=0.19.0",
        hybrid_manager="off",
        patches=_ONE_GROUP,
        patches_when=(("draft-text-only", _SEES),),
    ),
    Method(
        method="draft_model",
        versions=">=0.19.0,<0.20",
        hybrid_manager="on",
        patches=("draft-several-kv-groups",),
        patches_when=(("draft-text-only", _SEES),),
    ),
    Method(
        method="draft_model",
        versions=">=0.31.0",
        hybrid_manager="on",
        note="only in model runner v2, which needs Triton; read in its code, not run",
    ),
    Method(method="eagle3", versions=">=0.19.0,<0.19.1", patches=("eagle3-gemma4-target",)),
    Method(method="eagle3", versions=">=0.19.1"),
    Method(
        method="mtp",
        versions=">=0.21.0",
        patches_when=(("mtp-share-embeddings", "vLLM 0.25.0 to 0.26.0, and model runner v1 runs"),),
        note="with google/gemma-4-*-it-assistant, and transformers 5.8.0 or newer",
    ),
    Method(method="dflash", versions=">=0.21.0", note="up to 0.24 no layer has a sliding window"),
    Method(method="dflash", versions=">=0.25.0", hybrid_manager="off", patches=_WINDOWS),
    Method(method="dspark", versions=">=0.26.0", note="only in model runner v2"),
    Method(method="dspark", versions=">=0.26.0", hybrid_manager="off", patches=_WINDOWS),
    Method(method="custom_class", versions=">=0.22.0"),
    Method(method="extract_hidden_states", versions=">=0.19.1"),
)
"""Sources, all in the released wheels. draft_model: is_kv_cache_spec_uniform() and
add_kv_sharing_layers_to_kv_cache_groups() in every release (docs/explanations/proof.md shows both bugs in real code),
the assertion in SpecDecodeBaseProposer.validate_same_kv_cache_group (every release), and
vllm/v1/worker/gpu/spec_decode/ from 0.31.0. eagle3: the list
aux_hidden_states_supported in vllm/config/speculative.py of 0.19.0 and 0.19.1. mtp:
vllm/model_executor/models/gemma4_mtp.py from 0.21.0, _maybe_share_embeddings of 0.25.0-0.26.0. dflash: windows of
its layers in vllm/model_executor/models/qwen3_dflash.py from 0.25.0, which DSpark heads take over. dspark:
gemma4_dspark.py from 0.26.0. The rest: the literal SpeculativeMethod and the proposers of v1/spec_decode."""


def since(method: str) -> str | None:
    """Return the first release in which a method drafts for a Gemma 4 target; None for a method that never does."""
    firsts = (row.versions.removeprefix(">=").partition(",")[0] for row in METHODS if row.method == method)
    return next(firsts, None)


def methods_for(vllm: str) -> tuple[Method, ...]:
    """Return what works under one vLLM."""
    return tuple(row for row in METHODS if within(vllm, row.versions))


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


TRANSFORMERS_BY_VLLM: Final = (
    (">=0.19.0,<0.28.0", ">=5.5.0,<5.15"),
    (">=0.28.0,<0.29.0", ">=5.5.3,<5.18"),
    (">=0.29.0,<0.32.0", ">=5.10.4,<5.18"),
    (">=0.32.0,<0.33.0", ">=5.16.1,<5.20"),
    (">=0.33.0,<0.34.0", ">=5.16.1,<5.21"),
)
"""(vLLM releases, transformers releases). Lower bounds: Gemma 4's model code, and each wheel's METADATA; 0.19.0's says
<5, which has no Gemma 4.

Upper bounds: from 5.15.0 on transformers keeps Gemma 4's head sizes by layer (per_layer_config). vLLM up to 0.27.1
reads them from the whole config and dies with AmbiguousGlobalPerLayerAttributeError: 0.27.1 with 5.15.1 and 5.17.0,
0.26.0 with 5.17, 0.20.0 with 5.23 were run. From 0.28.0 on gemma4_layer_config in
vllm/transformers_utils/configs/gemma4.py reads both forms: 0.28.0, 0.29.0 and 0.30.0 read the tiny pair's config from
5.14.1, 5.15.1 and 5.17.0 alike, and 0.30.0 serves the tiny target with 5.17.0. 0.31.0, with the same code, is the first
whose METADATA has an upper bound, which is used for earlier releases too."""

ASSISTANTS_FROM: Final = "5.8.0"
"""The first transformers with Gemma 4's MTP head (vLLM 0.21's tests/models/registry.py)."""


def transformers_for(vllm: str) -> str | None:
    """Return the transformers range for one released vLLM; None for a release that is not in the table."""
    return next((bound for releases, bound in TRANSFORMERS_BY_VLLM if launcher.range_contains(releases, vllm)), None)


_BY_PATH: Final = (
    ("eagle-", "eagle", "0.19.0"),
    ("eagle3", "eagle3", "0.19.0"),
    ("dflash", "dflash", "0.20.0"),
    ("dspark", "dspark", "0.25.0"),
)
"""Parts of a draft's path, in vLLM's order, the method that vLLM derives from them, and the first release that does so
("Automatically detect the method")."""
HEAD_FORMATS: Final = (
    ("dflash2", "speculator.dflash2", "0.30.0"),
    ("dspark", "speculator.dspark", "0.26.0"),
    ("peagle", "speculator.peagle", "0.24.0"),
)
"""`speculators_model_type`, the name of such a head, and the first release that reads it for a Gemma 4
(vllm/transformers_utils/configs/speculators/algos.py)."""
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


_ALWAYS: Final = ("there is no Triton, as on a CPU", "parallel_drafting")
"""parallel_drafting counts only for heads: dflash and dspark always draft in parallel and run under v2."""
_KEYS: Final = frozenset({"parallel_drafting", "use_heterogeneous_vocab", "--runner pooling"})
"""Options that count where `v1_when` names them; all others are features that the release's v2 lacks."""
_NGRAM: Final = frozenset({"ngram", "ngram_gpu"})
_NEVER: Final = frozenset({"suffix", "custom_class"})

RUNNERS: Final = (
    RunnerRule(versions=">=0.19.0,<0.25", dense="v1", mixture="v1"),
    RunnerRule(
        versions=">=0.25.0,<0.29",
        dense="v2",
        mixture="v1",
        v1_methods=_NGRAM | _NEVER | {"draft_model", "extract_hidden_states", "medusa", "mlp_speculator"},
        v1_when=(*_ALWAYS, "eagle3 with pipeline parallelism", "--runner pooling"),
    ),
    RunnerRule(
        versions=">=0.29.0,<0.30",
        dense="v2",
        mixture="v2",
        v1_methods=_NGRAM | _NEVER | {"draft_model", "medusa", "mlp_speculator"},
        v1_when=(*_ALWAYS, "eagle3 with pipeline parallelism"),
    ),
    RunnerRule(
        versions=">=0.30.0,<0.31",
        dense="v2",
        mixture="v2",
        v1_methods=_NGRAM | _NEVER | {"draft_model", "medusa", "mlp_speculator"},
        v1_when=_ALWAYS,
    ),
    RunnerRule(
        versions=">=0.31.0,<0.32",
        dense="v2",
        mixture="v2",
        v1_methods=_NGRAM | _NEVER | {"medusa", "mlp_speculator"},
        v1_when=_ALWAYS,
    ),
    RunnerRule(
        versions=">=0.32.0",
        dense="v2",
        mixture="v2",
        v1_methods=_NEVER | {"medusa", "mlp_speculator"},
        v1_when=(*_ALWAYS, "use_heterogeneous_vocab"),
    ),
)
"""vllm/config/vllm.py: use_v2_model_runner, _is_default_v2_model_runner_model (0.22.0-0.28.0; dense models from
0.25.0), _get_v2_model_runner_unsupported_features (from 0.22.0), whose lists the tests compare with v1_methods."""


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
