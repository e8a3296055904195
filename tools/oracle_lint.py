"""Lint against the engine: random profiles, one to three changes from a sane base, judged by both.

Used by oracle.py. What only one of the two refuses is printed, with its changes and the words; what is known and why
is EXPECTED.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from oracle import Oracle, model_folders

from gemmaspec.checkpoint.model import Checkpoint
from gemmaspec.errors import ProfileError
from gemmaspec.lint.check import check
from gemmaspec.models.open import open_checkpoint
from gemmaspec.profile.load import Loaded, load_profile
from gemmaspec.releases.facts import Facts, facts_for
from gemmaspec.stack.paths import Paths
from gemmaspec.stack.serve import serve_command, speculative_config

MACHINES: Final = {"dgx-spark": "gb10", "h200": "h200", "a100": "a100"}
EXPECTED: Final = (
    (r"Arctic Inference", "the oracle's Python has no arctic-inference; GS709 warns of it"),
    (r"Failed to import Ray|ray", "the oracle's Python has no Ray"),
    (r"[Cc]u[Mm]em|sleep mode|libcudart", "the oracle has no compiled allocator"),
    (r"GS401|GS402|GS404", "patches play after configuration"),
    (r"GS309", "the engine refuses later, when it plans the encoder's budget"),
    (r"GS301|GS307|GS313|GS108", "the engine refuses later, when it chooses kernels or plans the cache"),
    (r"GS222.*dspark", "the engine refuses later, when it loads the weights"),
    (
        r"Fault tolerance requires|use-replayssm|torch_shm is known",
        "flags of other setups; `up` tells vLLM's own words",
    ),
    (r"not a valid JSON file", "two runs of the oracle wrote the same folder at once"),
    (r"Batch-sharded sampling|Microbatching", "they depend on other parallelism; `up` tells vLLM's own words"),
    (r"GS113.*logging", "vLLM reads the level when it is imported, which the oracle does before it is asked"),
    (r"[Mm]amba|nsight", "flags for other models, and for a profiler of Ray"),
    (r"GS105", "a variable that --fail-on-environ-validation makes fatal is read in another process"),
)
"""What the two may say differently, by lint's code and words or the engine's, and why."""
BASES: Final = (
    ("gemma-4-31B-it", None, None),
    ("gemma-4-E2B-it", None, None),
    ("gemma-4-26B-A4B-it", None, None),
    ("Gemma-4-31B-IT-NVFP4", None, None),
    ("gemma-4-31B-it", "gemma-4-E2B-it", "draft_model"),
    ("gemma-4-31B-it", "gemma-4-31B-it-assistant", "mtp"),
    ("gemma-4-26B-A4B-it", "gemma-4-26B-A4B-it-assistant", "mtp"),
    ("gemma-4-31B-it", "gemma-4-31B-eagle3", "eagle3"),
    ("gemma-4-31B-it", None, "ngram"),
)
_NUMBERS: Final = ("1", "2", "64", "2048", "8192", "131072")
_LEFT_OUT: Final = re.compile(
    r"--(config|model|served-model-name|host|port|uds|grpc|headless|tokenizer|hf-token|api-key|chat-template|download-dir"
    r"|speculative-config|spec-.*|revision|code-revision|allowed-.*|ssl-.*|lora-modules|.*plugin.*|node-rank|master-.*"
    r"|data-parallel.*|.*-parallel-.*rank.*|load-format|model-impl|runner|convert|task|device|hf-.*|kv-transfer-config"
    r"|ec-transfer-config|kv-events-config|.*-config|otlp.*|collect.*|profiler.*|middleware|root-path|.*-path|log-.*"
    r"|config-format|quantization.*|skip-tokenizer-init|tokenizer-mode|renderer.*|api-server-count|.*dir|.*file)"
)
"""Flags whose value is a file, an address or another model: what they say is of that, not of the profile."""


@dataclass(frozen=True)
class Trial:
    """One profile: a base, a machine, and what was changed."""

    base: tuple[str, str | None, str | None]
    machine: str
    changes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.machine} {' + '.join(one for one in self.base if one)}: {'; '.join(self.changes)}"


def changes(facts: Facts) -> list[str]:
    """Every kind of change that a release offers, as --set takes it; a word with -- becomes an extra argument."""
    found = [f"serve.{key}={value}" for key, values in _TYPED.items() for value in values]
    found += [f"speculative.{key}={value}" for key, values in _SPECULATIVE.items() for value in values]
    for name, flag in sorted(facts.flags.items()):
        if _LEFT_OUT.fullmatch(name):
            continue
        found += _of_flag(name, flag.choices, bare=flag.bare, negatable=flag.negatable, opposite=flag.opposite)
    found += ["--no-such-flag", "--enable-prefix-cachign", "env.VLLM_LOGGING_LEVEL=LOUD", "-O9", "-O1"]
    return found


def _of_flag(
    name: str, choices: frozenset[str] | None, *, bare: bool, negatable: bool, opposite: str | None
) -> Iterator[str]:
    if choices:
        values = sorted(choices)
        yield from (f"{name}={value}" for value in (values[0], values[-1], "nonsense"))
    elif bare:
        yield name
    if negatable:
        yield f"--no-{name.removeprefix('--')}"
    if opposite:
        yield opposite


_TYPED: Final[Mapping[str, Sequence[str]]] = {
    "max_model_len": ("1024", "4096", "131072", "262144", "300000"),
    "max_num_seqs": _NUMBERS,
    "max_num_batched_tokens": _NUMBERS,
    "gpu_memory_utilization": ("0.5", "0.9"),
    "kv_cache_dtype": ("auto", "fp8", "bfloat16", "fp9"),
    "block_size": ("16", "64", "128"),
    "dtype": ("auto", "bfloat16", "float16", "float8"),
    "tensor_parallel_size": ("1", "2", "3", "4", "16"),
    "pipeline_parallel_size": ("1", "2"),
    "attention_backend": ("TRITON_ATTN", "NO_ATTN"),
    "linear_backend": ("marlin", "nothing"),
    "moe_backend": ("marlin", "nothing"),
    "enable_prefix_caching": ("true", "false"),
    "enable_chunked_prefill": ("true", "false"),
    "disable_hybrid_kv_cache_manager": ("true", "false"),
    "async_scheduling": ("true", "false"),
    "enforce_eager": ("true",),
    "language_model_only": ("true",),
    "kv_sharing_fast_prefill": ("true",),
    "limit_mm_per_prompt": ("{image: 0, video: 0, audio: 0}", "{image: 2}"),
}
_SPECULATIVE: Final[Mapping[str, Sequence[str]]] = {
    "method": ("draft_model", "mtp", "eagle3", "dflash", "eagle"),
    "num_speculative_tokens": ("1", "3", "8"),
    "draft_tensor_parallel_size": ("1", "2"),
    "max_model_len": ("1024", "300000"),
    "disable_padded_drafter_batch": ("true",),
    "parallel_drafting": ("true",),
    "use_heterogeneous_vocab": ("true",),
    "use_local_argmax_reduction": ("true",),
    "draft_sample_method": ("greedy", "probabilistic", "gumbel"),
    "rejection_sample_method": ("standard", "block", "strict", "synthetic"),
    "synthetic_acceptance_length": ("2.5",),
    "attention_backend": ("TRITON_ATTN",),
    "enforce_eager": ("true",),
}


def compare(wanted: Sequence[str], number: int, seed: int) -> int:
    """Judge `number` profiles of each release by both; returns how many disagree without being expected to."""
    total = 0
    for release in wanted:
        with Oracle(release, "gb10") as oracle:
            total += compare_release(oracle, release, number, seed)
    return total


def compare_release(oracle: Oracle, release: str, number: int, seed: int) -> int:
    """Judge `number` profiles by lint and by the oracle of that release; returns how many disagree unexpectedly."""
    models = model_folders()
    opened = {folder.name: _opened(folder) for folder in models.iterdir()}
    facts = facts_for(release)
    assert facts
    kinds = changes(facts)
    chosen = random.Random(f"{seed}-{release}")
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        while sum(counts.values()) < number:
            trial = _trial(chosen, kinds)
            verdict = _judged(trial, Path(folder), models, opened, oracle, release)
            if verdict is None:
                continue
            counts[verdict[0]] += 1
            if verdict[0] in ("lint alone", "engine alone"):
                print(f"  {verdict[0]}: {trial}\n    {verdict[1]}", flush=True)
    print(f"vllm {release}: {number} profiles, {len(kinds)} kinds of change, {dict(counts)}", flush=True)
    return counts["lint alone"] + counts["engine alone"]


def _opened(folder: Path) -> Checkpoint:
    """A folder's configuration; its weights are nowhere, and no rule asks for them."""
    return replace(open_checkpoint(str(folder)), missing_files=())


def _trial(chosen: random.Random, kinds: Sequence[str]) -> Trial:
    base = chosen.choice(BASES)
    machine = chosen.choice(list(MACHINES))
    own = [one for one in kinds if base[2] or not one.startswith("speculative.")]
    return Trial(base, machine, tuple(chosen.sample(own, chosen.randint(1, 3))))


def _judged(
    trial: Trial, folder: Path, models: Path, opened: Mapping[str, Checkpoint], oracle: Oracle, release: str
) -> tuple[str, str] | None:
    """Which of the two refuse it and in what words; None where it is no valid profile that has a command line."""
    target, draft, _ = trial.base
    said = ""
    try:
        loaded = _loaded(trial, folder, models)
    except ProfileError as error:
        return None if "input should be" in error.message else _invalid(error)
    found = check(
        loaded, patches={}, asked=release, target=opened[target], draft=opened[draft] if draft else None, notes=False
    )
    errors = [one for one in found if one.severity == "error" and one.code not in ("GS401", "GS404")]
    answer = oracle.ask(_question(loaded, trial))
    if "broken" in answer:
        return "broken", answer["broken"]
    theirs = "" if answer["accepted"] else " ".join(answer["why"]).replace("\n", " ")[:300]
    said = "; ".join(f"{one.code} {one.message}" for one in errors) or theirs
    if bool(errors) == (not answer["accepted"]):
        return "both refuse" if errors else "both accept", said
    if any(re.search(pattern, said) for pattern, _ in EXPECTED):
        return "expected", said
    return "lint alone" if errors else "engine alone", said


def _invalid(error: ProfileError) -> tuple[str, str] | None:
    return ("not a profile", error.message)


def _loaded(trial: Trial, folder: Path, models: Path) -> Loaded:
    target, draft, method = trial.base
    lines = ["schema: 1", "name: mine", "summary: a trial", f"machine: {trial.machine}", "runtime: {vllm: 0.33.0}"]
    lines.append(f"target: {{model: {models / target}}}")
    if draft:
        lines.append(f"draft: {{model: {models / draft}}}")
    if method:
        more = ", prompt_lookup_max: 4" if method == "ngram" else ""
        lines.append(f"speculative: {{method: {method}, num_speculative_tokens: 3{more}}}")
    lines.append("serve: {max_model_len: 8192}")
    (folder / "mine.yaml").write_text("\n".join(lines) + "\n")
    sets = [one for one in trial.changes if not one.startswith("-")]
    words = [one for one in trial.changes if one.startswith("-")]
    if words:
        sets.append(f"serve.extra_args={json.dumps(words)}")
    return load_profile(str(folder / "mine.yaml"), overrides=sets)


def _question(loaded: Loaded, trial: Trial) -> dict[str, object]:
    profile = loaded.profile
    paths = Paths(
        host="127.0.0.1",
        target=profile.target.model,
        draft=profile.draft.model if profile.draft else None,
        template=None,
    )
    argv = ["--model", *serve_command(profile, paths)[2:]]
    if spec := speculative_config(profile, paths):
        argv += ["--speculative-config", json.dumps(spec)]
    return {"argv": argv, "env": dict(profile.env), "machine": MACHINES[trial.machine]}
