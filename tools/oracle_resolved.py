"""Ask vLLM what it does with every shipped profile as it is and under some changes, and keep the answers.

`oracle.py resolved` writes tests/data/resolved.json: a question in words, and what vLLM's configuration and layers say.
tests/check/test_one_answer.py holds the same questions against what each command computes with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from oracle_release import Oracle, served_folder, write_model

from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.checkpoint.published.shipped import checkpoint_of, servable_config, shipped_for
from gemmaspec.core.errors import ProfileError
from gemmaspec.core.files import write_whole
from gemmaspec.core.profile.command import vllm_of
from gemmaspec.core.profile.find import profile_folders, profile_names
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.profile.machines import ANY_GPU
from gemmaspec.core.profile.model import Draft, Profile, Target
from gemmaspec.core.releases.facts import newest
from gemmaspec.run.stack.paths import Paths
from gemmaspec.run.stack.serve import serve_command, speculative_config

ANSWERS: Final = Path(__file__).parent.parent / "tests" / "data" / "resolved.json"
MACHINES: Final = {"dgx-spark": "gb10", "h100": "h100", "h200": "h200", "b200": "b200", "a100": "a100"}
"""The machine of a profile → the oracle's."""
_ON_HOPPER: Final = ("machine=h200", "image=", "runtime.vllm=0.32.0", "serve.attention_backend=")
_ON_B200: Final = ("machine=b200", "image=", "runtime.vllm=0.33.0", "serve.attention_backend=")
CHANGES: Final[Mapping[str, tuple[str, ...]]] = {
    "as shipped": (),
    "text only": ("serve.language_model_only=true",),
    "no images": ("serve.limit_mm_per_prompt={image: 0}",),
    "no images, no videos": ("serve.limit_mm_per_prompt={image: 0, video: 0}",),
    "no media": ("serve.limit_mm_per_prompt={image: 0, video: 0, audio: 0}",),
    "no videos": ("serve.limit_mm_per_prompt={video: 0}",),
    "FP8 cache": ("serve.kv_cache_dtype=fp8",),
    "BF16 cache": ("serve.kv_cache_dtype=bfloat16",),
    "batch given": ("serve.max_num_batched_tokens=4096",),
    "short": ("serve.max_num_seqs=4", "serve.max_model_len=512"),
    "Hopper": _ON_HOPPER,
    "Hopper, no images, no videos": (*_ON_HOPPER, "serve.limit_mm_per_prompt={image: 0, video: 0}"),
    "B200": _ON_B200,
    "model runner v1": ("env.VLLM_USE_V2_MODEL_RUNNER='0'",),
}
"""Names of changes → overrides."""


ASKED: Final = ("as shipped", "no images, no videos", "no media", "short", "Hopper", "Hopper, no images, no videos")
"""The changes that vLLM is asked about; the others are held against each other."""
_ALONE: Final = ("--enable-prefix-caching", "--enable-auto-tool-choice")
_WITH_A_VALUE: Final = (
    *("--host", "--port", "--served-model-name", "--gpu-memory-utilization", "--disable-access-log-for-endpoints"),
    *("--reasoning-parser", "--tool-call-parser", "--chat-template", "--chat-template-content-format"),
    *("--default-chat-template-kwargs", "--allowed-origins"),
)
"""Flags that decide nothing of what is asked."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A profile under a change, with the published shapes of its models."""

    name: str
    change: str
    loaded: Loaded
    target: Checkpoint
    draft: Checkpoint | None

    @property
    def profile(self) -> Profile:
        """The profile with the change."""
        return self.loaded.profile

    @property
    def release(self) -> str:
        """The release that it states, else the newest."""
        return vllm_of(self.profile) or newest()

    @property
    def argv(self) -> list[str]:
        """The command line, with models as MODELS/NAME."""
        draft = self.profile.draft
        paths = Paths(
            host="127.0.0.1",
            target=_named(self.profile.target),
            draft=_named(draft) if draft else None,
            template=None,
        )
        argv = list(_deciding(serve_command(self.profile, paths)[2:]))
        if spec := speculative_config(self.profile, paths):
            argv += ["--speculative-config", json.dumps(spec)]
        return argv

    @property
    def env(self) -> dict[str, str]:
        """The variables that decide anything here."""
        return {key: value for key, value in self.profile.env.items() if key == "VLLM_USE_V2_MODEL_RUNNER"}

    @property
    def key(self) -> str:
        """The question in one line."""
        words = [f"vllm {self.release}", MACHINES[self.profile.machine], *self.argv]
        words += [f"{key}={value}" for key, value in self.env.items()]
        return " ".join(words)


def _deciding(words: Sequence[str]) -> Iterator[str]:
    """Yield a command line without the flags that decide nothing here, so that a question stays the same."""
    skips = 0
    for word in words:
        if skips:
            skips -= 1
        elif word in _WITH_A_VALUE:
            skips = 1
        elif word not in _ALONE:
            yield word


def pairs() -> Iterator[Pair]:
    """Yield every shipped profile under every change, where its models' shapes ship and the oracle has its machine."""
    for file in profile_names(profile_folders()[-1:]).values():
        for change, overrides in CHANGES.items():
            try:
                loaded = load_profile(str(file), overrides=overrides)
                if loaded.profile.machine == ANY_GPU:
                    loaded = load_profile(str(file), overrides=(*overrides, "machine=h100"))
            except ProfileError:
                continue
            profile = loaded.profile
            target, draft = _shapes(profile.target), _shapes(profile.draft)
            if profile.machine not in MACHINES or target is None or (profile.draft and draft is None):
                continue
            yield Pair(name=profile.name, change=change, loaded=loaded, target=target, draft=draft)


def _shapes(model: Target | Draft | None) -> Checkpoint | None:
    known = shipped_for(model.model) if model else None
    return checkpoint_of(known) if known else None


def _named(model: Target | Draft) -> str:
    return f"MODELS/{model.model.rpartition('/')[2]}"


def ask_about(wanted: Iterable[Pair]) -> int:
    """Ask about pairs and write what was answered; return how many got no answer."""
    questions = {pair.key: pair for pair in wanted if pair.change in ASKED}
    answers = {}
    for release in sorted({pair.release for pair in questions.values()}):
        with Oracle(release, "gb10") as oracle:
            for key, pair in questions.items():
                if pair.release == release:
                    answers[key] = _answer(oracle, pair)
                    print(key, answers[key], flush=True)
    write_whole(ANSWERS, json.dumps(dict(sorted(answers.items())), indent=1) + "\n")
    return sum("refused" in answer for answer in answers.values())


def _answer(oracle: Oracle, pair: Pair) -> dict[str, Any]:
    argv = [word.replace("MODELS/", f"{_folder(pair)}/") for word in pair.argv]
    question = {"argv": argv, "env": pair.env, "machine": MACHINES[pair.profile.machine]}
    layers = oracle.ask({**question, "layers": True})
    found = oracle.ask(question) if "broken" in layers else layers  # layers of some formats cannot be built on a CPU
    if "resolved" not in found:
        return {"refused": str(found)[:200].replace(str(_folder(pair)), "MODELS")}
    resolved = found["resolved"]
    answer = {
        "batch": resolved["max_num_batched_tokens"],
        "sequences": resolved["max_num_seqs"],
        "length": resolved["max_model_len"],
        "whole items": resolved["disable_chunked_mm_input"],
        "cache": resolved["cache_dtype"],
        "runner": resolved["runner"],
        "hybrid": not resolved["disable_hybrid_kv_cache_manager"],
    }
    if found is layers:
        for role in ("target", "draft"):
            answer[role] = sorted(set(layers[role].values()))
        answer["graphs"] = layers["graphs"]
    return answer


def _folder(pair: Pair) -> Path:
    """Return the folder with the models of a pair; another one where a configuration is another."""
    configs = {}
    for model in (pair.profile.target, pair.profile.draft):
        known = shipped_for(model.model) if model else None
        if model and known:
            configs[_named(model).removeprefix("MODELS/")] = servable_config(known)
    digest = hashlib.sha256(json.dumps(configs, sort_keys=True).encode()).hexdigest()[:12]
    folder = served_folder() / digest
    for name, config in configs.items():
        write_model(folder / name, config)
    return folder
