"""Compare lint with the engine on random profiles with one to three changes from a valid base.

Used by oracle.py. It prints profiles that only one of the two rejects, with the changes and the message; EXPECTED lists
the known differences and their reasons.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from oracle_release import QUANTIZED, Oracle, model_folders

from gemmaspec.check.lint.check import check
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.errors import ProfileError
from gemmaspec.core.files import write_whole
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.releases.facts import Facts, facts_for
from gemmaspec.core.resolved.answer import known
from gemmaspec.core.resolved.resolve import resolved_of
from gemmaspec.run.models.open import open_checkpoint
from gemmaspec.run.stack.paths import Paths
from gemmaspec.run.stack.serve import serve_command, speculative_config

MACHINES: Final = {
    "dgx-spark": "gb10",
    "h200": "h200",
    "a100": "a100",
    "b200": "b200",
    "rtx-5090": "rtx-5090",
    "cpu": "cpu",
}
"""The machine of a profile → the oracle's; one in six profiles is for each."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """One thing that only one of the two refuses, and why that is left so."""

    side: Literal["lint", "engine", "value"]
    """Who refuses alone; value: nobody, and the two compute with different values."""
    says: str
    """Found in lint's code and words, in the engine's words, or in those about the values."""
    given: str
    """Found in one of the changes, or in the base."""
    why: str


_LATER: Final = "the engine refuses later, "
EXPECTED: Final = (
    Known(
        side="lint",
        says=r"^GS501 decoding gets no full CUDA graph \(target \w+, draft NONE\)",
        given=r"\b(mtp|eagle3?|dflash|dspark|draft_model)\b|assistant",
        why="vLLM serves it, more slowly than without the draft, as an H200 showed",
    ),
    Known(
        side="lint",
        says=r"^GS301 with the hybrid KV cache manager on",
        given=r"no-disable-hybrid-kv-cache-manager|disable_hybrid_kv_cache_manager=false|method=draft_model",
        why=f"{_LATER}where the drafter looks for its one KV cache group",
    ),
    Known(
        side="lint",
        says=r"^GS309 (is|comes to) [0-9]+, and one video of the target takes 2496",
        given=r"max[-_]num[-_]batched[-_]tokens|max[-_]num[-_]seqs|max[-_]model[-_]len=1024|disable-chunked-mm-input|performance-mode",
        why=f"{_LATER}where it plans the encoder's budget",
    ),
    Known(
        side="lint",
        says=r"^GS307 .*(attention backend|incompatible with dtype)",
        given=r"kv[-_]cache[-_]dtype=|block[-_]size=|NVFP4|\|",
        why=f"{_LATER}where a layer asks for its attention backend",
    ),
    Known(
        side="lint",
        says=r"^GS202 \S+ is made for (mtp|eagle3|dflash|dspark)$",
        given=r"speculative\.method=(eagle|eagle3|dflash|dspark|draft_model|mtp)\b",
        why=f"{_LATER}where it builds or first runs the head",
    ),
    Known(
        side="lint",
        says=r"^GS202 .* head of DeepSeek V4, and stops while it builds that$",
        given=r"speculative\.method=dspark",
        why=f"{_LATER}where it builds the draft",
    ),
    Known(
        side="lint",
        says=r"^GS218 .* and the server does not start$",
        given=r"pipeline_parallel_size=|--pipeline-parallel-size",
        why=f"{_LATER}where the last stage builds the draft's layers",
    ),
    Known(
        side="lint",
        says=r"^GS102 Python's logging has no level",
        given=r"env\.VLLM_LOGGING_LEVEL=",
        why="vLLM reads the level when it is imported, which the oracle does before it is asked",
    ),
    Known(
        side="engine",
        says=r"libcudart is not loaded in the current process",
        given=r"--enable-sleep-mode|--enable-cumem-allocator",
        why="the oracle's Python has no CUDA",
    ),
    Known(
        side="engine",
        says=r"has model type `gemma4_unified` but Transformers does not recognize",
        given=r"gemma-4-12B-it",
        why="the transformers that the oracle takes for this release does not know a 12B; a later one does",
    ),
    Known(
        side="engine",
        says=r"EngramConfig requires a model with supported Engram",
        given=r"--engram-config",
        why="for models with n-gram layers, which no Gemma has; vLLM's own words say so",
    ),
    Known(
        side="engine",
        says=r"--use-replayssm is not supported for architecture 'Gemma4",
        given=r"--use-replayssm",
        why="for models with Mamba layers; vLLM's own words say so",
    ),
    Known(
        side="engine",
        says=r"torch_shm is known to fail without VLLM_WORKER_MULTIPROC_METHOD set to spawn",
        given=r"--mm-tensor-ipc=torch_shm",
        why="it hangs on a variable of the process; vLLM's own words name it",
    ),
    Known(
        side="engine",
        says=r"Batch-sharded sampling was explicitly enabled|V1 does not support: batch-sharded sampling",
        given=r"--enable-batch-sharded-sampling",
        why="it hangs on several kinds of parallelism; vLLM's own words name them",
    ),
    Known(
        side="engine",
        says=r"dcp_comm_backend='a2a' requires decode_context_parallel_size > 1",
        given=r"--dcp-comm-backend=a2a",
        why="context parallelism is of no profile here; vLLM's own words name what is missing",
    ),
    Known(
        side="engine",
        says=r"Non-integer device ID .* is not supported by cuda",
        given=r"--device-ids",
        why="a name of a GPU is looked up by its driver, which the oracle does not have",
    ),
    Known(
        side="value",
        says=r"^max_num_batched_tokens 2496 here, 2048 there$",
        given=r"--tokenizer-mode|env\.VLLM_USE_MODELSCOPE=",
        why="without a tokenizer or ModelScope the oracle builds no processor, which says how large an image is",
    ),
    Known(
        side="engine",
        says=r"Model Runner V2 does not yet support: routed experts capture",
        given=r"--enable-return-routed-experts",
        why="for reinforcement learning with a mixture of experts",
    ),
)
"""Everything that the two may say differently."""
UNEXPECTED: Final = ("lint alone", "engine alone", "other value", "broken")
"""Verdicts that have to be looked into."""
BASES: Final = (
    ("gemma-4-31B-it", None, None),
    ("gemma-4-E2B-it", None, None),
    ("gemma-4-12B-it", None, None),
    ("gemma-4-26B-A4B-it", None, None),
    ("Gemma-4-31B-IT-NVFP4", None, None),
    ("gemma-4-E4B-it", "gemma-4-E4B-it-assistant", "mtp"),
    *((f"gemma-4-31B-it-{name}", None, None) for name in QUANTIZED),
    ("gemma-4-31B-it", "gemma-4-E2B-it", "draft_model"),
    ("gemma-4-31B-it", "gemma-4-31B-it-assistant", "mtp"),
    ("gemma-4-26B-A4B-it", "gemma-4-26B-A4B-it-assistant", "mtp"),
    ("gemma-4-31B-it", "gemma-4-31B-eagle3", "eagle3"),
    ("gemma-4-31B-it", "gemma-4-31B-dflash", "dflash"),
    ("gemma-4-31B-it", "gemma-4-31B-dspark", "dspark"),
    ("gemma-4-31B-it", None, "ngram"),
)
_NUMBERS: Final = ("1", "2", "64", "2048", "8192", "131072")
_LEFT_OUT: Final = re.compile(
    r"--(config|model|host|port|grpc-port|uds|headless|tokenizer|hf-token|api-key|chat-template|download-dir|middleware"
    r"|speculative-config|spec-.*|.*revision|allowed-.*|ssl-.*|lora-modules|default-mm-loras|.*plugin.*|master-.*"
    r"|.*-path|log-config-file|logging-config|.*dir|.*-cls|logits-processors|worker-extension-cls|tool-server"
    r"|generation-config|weight-transfer-config|grpc|root-path|otlp.*)"
)
"""Flags whose value is a file, an address, code or another model: an error would be about that, not the profile."""
_WORDS: Final = (
    *("0", "1", "2", "3", "4", "16", "64", "2048", "-1", "-2", "0.5", "1.5", "90", "1k", "2K", "1.5K", "1e3", "x", ""),
    *("None", "auto", "true", "lots", "{}", "[1]", "{bad", '{"a": 1}', "image=1", "4GB"),
)
_JSON: Final = ("0", "1", "3", "7", "-1", "1.5", "true", "null", '"x"', '"1"', '"full"', '"NONE"', "[1]", '["x"]', "{}")
_VARIABLES: Final = ("0", "1", "2", "-1", "1.5", "x", "true", "4GB", "auto")


@dataclass(frozen=True)
class Trial:
    """One profile: a base, a machine and the changes."""

    base: tuple[str, str | None, str | None]
    machine: str
    changes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.machine} {' + '.join(one for one in self.base if one)}: {'; '.join(self.changes)}"


def changes(facts: Facts) -> list[str]:
    """Return every kind of change for a release, as for --set; a word with -- becomes an extra argument."""
    found = [f"serve.{key}={value}" for key, values in _TYPED.items() for value in values]
    found += [f"speculative.{key}={value}" for key, values in _SPECULATIVE.items() for value in values]
    for name, flag in sorted(facts.flags.items()):
        if _LEFT_OUT.fullmatch(name):
            continue
        found += _of_flag(name, flag.choices, bare=flag.bare, negatable=flag.negatable, opposite=flag.opposite)
    found += ["--no-such-flag", "--enable-prefix-cachign", "env.VLLM_LOGGING_LEVEL=LOUD", "-O9", "-O1"]
    return found


def value_change(facts: Facts, chosen: random.Random) -> str:
    """Return one change of a value: of any flag, configuration, variable or quantization, right or wrong.

    A | in it separates words. Names are the release's; values do not depend on what the table says that they take.
    """
    kind = chosen.random()
    if kind < 0.15:
        return f"env.{chosen.choice(sorted(facts.environment))}={chosen.choice(_VARIABLES)!r}"
    if kind < 0.25:
        return f"target.quantization={chosen.choice([*sorted(facts.quantizations), 'nonsense'])}"
    flag = facts.flags[chosen.choice([name for name in sorted(facts.flags) if not _LEFT_OUT.fullmatch(name)])]
    if kind < 0.5:
        named = {name: one.form.lstrip("?@") for name, one in facts.flags.items() if "@" in one.form}
        name = chosen.choice([one for one in sorted(named) if not _LEFT_OUT.fullmatch(one)])
        key = chosen.choice([*sorted(facts.configs.get(named[name], {})), "level", "no_key"])
        value = chosen.choice(_JSON)
        return f"{name}.{key}={value}" if chosen.random() < 0.3 else f'{name}|{{"{key}": {value}}}'
    if flag.bare and not flag.choices:
        return chosen.choice(
            [flag.name, f"{flag.name}={chosen.choice(_WORDS)}", f"{flag.name}|{chosen.choice(_WORDS)}"]
        )
    written = chosen.random()
    if written < 0.05:
        return flag.name
    word = chosen.choice([*sorted(flag.choices or ()), *_WORDS[:3]] if flag.choices else _WORDS)
    return f"{flag.name}{'=' if written < 0.6 else '|'}{word}"


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
    "method": ("draft_model", "mtp", "eagle3", "dflash", "eagle", "dspark"),
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


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What came of one release."""

    release: str
    kinds: int
    """Kinds of change that profiles were made with."""
    counts: Mapping[str, int]
    """Verdict → profiles."""
    unexpected: tuple[str, ...]
    """Every profile that only one of the two refuses, for no reason that is written down."""

    def __str__(self) -> str:
        number = sum(self.counts.values())
        told = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        return f"vllm {self.release}: {number} profiles, {self.kinds} kinds of change: {told}"


_PAGE: Final = Path(__file__).parent.parent / "docs" / "explanations" / "oracle.md"
_BEGIN, _END = "<!-- figures: written by make oracle -->", "<!-- end -->"
_VERDICTS: Final = (
    *("both refuse", "both accept", "not a profile", "expected", "lint alone", "engine alone", "other value"),
)


def write_figures(found: Sequence[Compared], seed: int) -> None:
    """Write what came of each release into the page about the oracle, between its two marks."""
    head = ("release", "seed", "kinds of change", "profiles", *_VERDICTS)
    rows = [
        (one.release, seed, one.kinds, sum(one.counts.values()), *(one.counts.get(name, 0) for name in _VERDICTS))
        for one in found
    ]
    table = "\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, ("---",) * len(head), *rows))
    before, rest = _PAGE.read_text().split(_BEGIN)
    write_whole(_PAGE, f"{before}{_BEGIN}\n\n{table}\n\n{_END}{rest.split(_END, 1)[1]}")


def compare(wanted: Sequence[str], number: int, seed: int) -> list[Compared]:
    """Judge `number` profiles of each release by both."""
    every = []
    for release in wanted:
        with Oracle(release, "gb10") as gpus, Oracle(release, "cpu") as processors:
            found = compare_release({True: gpus, False: processors}, release, number, seed)
        print(found, flush=True)
        every.append(found)
    return every


def compare_release(oracles: Mapping[bool, Oracle], release: str, number: int, seed: int) -> Compared:
    """Judge `number` profiles by lint and by the oracle of that release. Disagreements are printed as they come.

    `oracles`: one that pretends GPUs, and one on the CPU.
    """
    models = model_folders()
    opened = {folder.name: _opened(folder) for folder in models.iterdir()}
    facts = facts_for(release)
    assert facts
    kinds = changes(facts)
    chosen = random.Random(f"{seed}-{release}")
    counts: Counter[str] = Counter()
    unexpected = []
    with tempfile.TemporaryDirectory() as folder:
        while sum(counts.values()) < number:
            trial = _trial(chosen, kinds, facts)
            oracle = oracles[trial.machine != "cpu"]
            verdict = _judged(trial, Path(folder), models, opened, oracle, release)
            if verdict is None:
                continue
            counts[verdict[0]] += 1
            if verdict[0] in UNEXPECTED:
                unexpected.append(f"{verdict[0]}: {trial}: {verdict[1]}")
                print(f"  {verdict[0]}: {trial}\n    {verdict[1]}", flush=True)
            if not sum(counts.values()) % 50:
                sys.stderr.write(f"oracle: vllm {release}: {sum(counts.values())} of {number} profiles\n")
    return Compared(release=release, kinds=len(kinds), counts=counts, unexpected=tuple(unexpected))


def _opened(folder: Path) -> Checkpoint:
    """Return a folder's configuration without weights, which no rule needs."""
    return replace(open_checkpoint(str(folder)), missing_files=())


def _trial(chosen: random.Random, kinds: Sequence[str], facts: Facts) -> Trial:
    """Return a profile with one to three changes, half of them of values."""
    base = chosen.choice(BASES)
    machine = chosen.choice(list(MACHINES))
    own = [one for one in kinds if base[2] or not one.startswith("speculative.")]
    number = chosen.choice((1, 1, 1, 2, 2, 3))
    found = [value_change(facts, chosen) if chosen.random() < 0.5 else chosen.choice(own) for _ in range(number)]
    return Trial(base, machine, tuple(dict.fromkeys(found)))


def _judged(
    trial: Trial, folder: Path, models: Path, opened: Mapping[str, Checkpoint], oracle: Oracle, release: str
) -> tuple[str, str] | None:
    """Return which of the two reject it, and the message; None if it is not a valid profile."""
    target, draft, _ = trial.base
    try:
        loaded = _loaded(trial, folder, models)
    except ProfileError as error:
        return None if "input should be" in error.message else _invalid(error)
    found = check(
        loaded, patches={}, asked=release, target=opened[target], draft=opened[draft] if draft else None, notes=False
    )
    errors = [one for one in found if one.severity == "error" and one.code not in ("GS401", "GS404")]
    answer = oracle.ask(_question(loaded, trial))
    given = " ".join((*trial.changes, *filter(None, trial.base)))
    if "broken" in answer:
        return "broken", answer["broken"]
    if answer["accepted"] and not errors:
        said = _other_values(loaded, release, opened[target], opened[draft] if draft else None, answer["resolved"])
        if said:
            return "expected" if expected("value", said, given) else "other value", said
        return "both accept", ""
    if errors and not answer["accepted"]:
        return "both refuse", ""
    if errors:
        said = [f"{one.code} {one.message}" for one in errors]
        known = all(expected("lint", one, given) for one in said)
        return "expected" if known else "lint alone", "; ".join(said)
    theirs = " ".join(answer["why"]).replace("\n", " ")[:300]
    return "expected" if expected("engine", theirs, given) else "engine alone", theirs


def _other_values(
    loaded: Loaded, release: str, target: Checkpoint, draft: Checkpoint | None, resolved: Mapping[str, object]
) -> str:
    """Return what lint computes with and the engine resolves otherwise."""
    facts = facts_for(release)
    assert facts
    known_here = resolved_of(loaded.profile, vllm=release, facts=facts, target=target, draft=draft)
    runner = known_here.runner if facts.runner_unsupported else None
    ours = {"max_num_batched_tokens": known(known_here.batch), "runner": runner}
    pairs = ((name, value, resolved.get(name)) for name, value in ours.items() if value is not None)
    return ", ".join(
        f"{name} {value} here, {theirs} there" for name, value, theirs in pairs if theirs not in (None, value)
    )


def expected(side: str, said: str, given: str) -> Known | None:
    """Return what is known of one thing that only one of the two refuses; None: nothing."""
    return next(
        (one for one in EXPECTED if one.side == side and re.search(one.says, said) and re.search(one.given, given)),
        None,
    )


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
        tokens = 8 if method == "dspark" else 3  # the head's block
        lines.append(f"speculative: {{method: {method}, num_speculative_tokens: {tokens}{more}}}")
    hybrid = ", disable_hybrid_kv_cache_manager: true" if method == "draft_model" else ""
    lines.append(f"serve: {{max_model_len: 8192{hybrid}}}")
    (folder / "mine.yaml").write_text("\n".join(lines) + "\n")
    sets = [one for one in trial.changes if not one.startswith("-")]
    words = [word for one in trial.changes if one.startswith("-") for word in one.split("|")]
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
    argv = [*serve_command(profile, paths)[2:]]
    if spec := speculative_config(profile, paths):
        argv += ["--speculative-config", json.dumps(spec)]
    return {"argv": argv, "env": dict(profile.env), "machine": MACHINES[trial.machine]}
