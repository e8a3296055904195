"""Lint against a real vLLM: it knows vLLM's flags; where it says error, vLLM refuses the configuration, and elsewhere takes it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.check.lint.check import check
from gemmaspec.core import data
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.command import vllm_of
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.releases.facts import facts_for
from gemmaspec.run.runtime.managed import runtime_dir
from gemmaspec.run.stack.paths import Paths, host_paths
from gemmaspec.run.stack.serve import serve_command, speculative_config
from gemmaspec.serve.prepare import runtime_spec
from tests.support.real import STATE, environment, tiny_pair

pytestmark = pytest.mark.real_process

NGRAM = ("draft=", "speculative=", "speculative={method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4}")
SYNTHETIC = "speculative.rejection_sample_method=synthetic"
ASKED: dict[str, tuple[tuple[str, str] | None, tuple[str, ...]]] = {
    "as it is": (None, ()),
    "a flag that was removed": (("GS101", "unrecognized arguments: --calculate-kv-scales"), ("serve.extra_args=[--calculate-kv-scales]",)),
    "a flag by its beginning": (None, ("serve.extra_args=[--max-logpr, 5]",)),
    "a no- form by its beginning": (None, ("serve.extra_args=[--no-enable-prefix]",)),
    "a number of thousands": (None, ("serve.extra_args=[--max-num-batched-tokens, 4k]", "serve.max_num_batched_tokens=")),
    "a value that is none": (("GS102", "invalid choice: 'marlinn'"), ("serve.linear_backend=marlinn",)),
    "a key of 0.33": (("GS101", "Unexpected keyword argument"), ("speculative.disable_lookahead_block_hashes=true", "speculative.method=eagle3", "draft.model=state:tiny/tiny-draft")),
    "a value of 0.33": (("GS102", "input_value='fly'"), ("speculative.rejection_sample_method=fly",)),
    "a value of 0.21": (("GS102", "input_value='gumbel'"), ("speculative.draft_sample_method=gumbel",)),
    "a parser that is none": (("GS102", "Reasoning parser 'gemma5' not found"), ("chat.reasoning_parser=gemma5",)),
    "the target's parser": (None, ("chat.reasoning_parser=gemma4",)),
    "a backend that is none": (("GS102", "Unknown attention backend: 'TRITON'"), ("serve.attention_backend=TRITON",)),
    "a backend in small letters": (None, ("serve.attention_backend=cpu_attn",)),
    "a quantization that is none": (("GS102", "Unknown quantization method: nvfp5"), ("draft.quantization=nvfp5",)),
    "a cache format that is none": (("GS102", "input_value='fp9'"), ("speculative.kv_cache_dtype=fp9",)),
    "ngram, asynchronously": (("GS206", "async scheduling is only supported"), (*NGRAM, "serve.async_scheduling=true")),
    "ngram": (None, NGRAM),
    "both forms of acceptance": (
        ("GS208", "requires exactly one of"),
        (SYNTHETIC, "speculative.synthetic_acceptance_rates=[0.5, 0.5, 0.5, 0.5]", "speculative.synthetic_acceptance_length=2"),
    ),
    "rising rates": (("GS208", "must be non-increasing"), (SYNTHETIC, "speculative.synthetic_acceptance_rates=[0.1, 0.2, 0.3, 0.4]")),
    "too few rates": (("GS208", "must have length 4"), (SYNTHETIC, "speculative.synthetic_acceptance_rates=[0.5]")),
    "too long an acceptance": (("GS208", "must be in [1, 5], got 5.5"), (SYNTHETIC, "speculative.synthetic_acceptance_length=5.5")),
    "falling rates": (None, (SYNTHETIC, "speculative.synthetic_acceptance_rates=[0.7, 0.5, 0.3, 0.2]")),
    "two vocabularies, not greedily": (
        ("GS211", "only supports greedy draft"),
        ("speculative.use_heterogeneous_vocab=true", "speculative.draft_sample_method=probabilistic"),
    ),
    "adaptive without logits": (
        ("GS215", "never materializes"),
        ("speculative.enable_adaptive_verification=true", "speculative.use_local_argmax_reduction=true"),
    ),
}  # fmt: skip


def profile(*sets: str) -> Loaded:
    return load_profile("tiny-cpu", folders=[data.PROFILES], overrides=sets)


def errors(loaded: Loaded) -> set[str]:
    found = check(loaded, patches=Shelf((data.PATCHES,)), asked=vllm_of(loaded.profile))
    return {one.code for one in found if one.severity == "error"}


def arguments(loaded: Loaded, paths: Paths) -> list[str]:
    """What the launcher would run, after `vllm serve`."""
    config = speculative_config(loaded.profile, paths)
    speculative = ["--speculative-config", json.dumps(config)] if config else []
    return ["--model", *serve_command(loaded.profile, paths)[2:], *speculative]


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    """What vLLM says of its flags and of each, all asked in one process."""
    python = runtime_dir(runtime_spec(profile())) / "bin" / "python"
    tiny_pair()
    paths = replace(host_paths(profile().profile, folder=Path(), state=STATE), template=None)
    asked = [arguments(profile(*sets), paths) for _, sets in ASKED.values()]
    done = subprocess.run(
        [str(python), str(Path(__file__).parent.parent / "support" / "ask_vllm.py")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=environment({"HF_HUB_OFFLINE": "1"}),
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_parser_of_the_real_vllm_has_exactly_these_flags(said: dict[str, Any]) -> None:
    """What `vllm serve --help=all` prints is this parser; --help itself and what depends on the machine are no facts."""
    known = facts_for("0.32.0")
    assert known
    ours = {
        name: {
            "choices": None if flag.choices is None else sorted(flag.choices),
            "bare": flag.bare,
            "negatable": flag.negatable,
            "short": flag.short,
        }
        for name, flag in known.flags.items()
    }
    long = {name: flag for name, flag in said["flags"].items() if name.startswith("--") and name != "--help"}
    no = {name for name in long if name.startswith("--no-") and f"--{name[5:]}" in long}
    assert {name: flag for name, flag in long.items() if name not in no} == ours
    assert no == {f"--no-{name[2:]}" for name, flag in known.flags.items() if flag.negatable}


@pytest.fixture(scope="module")
def answers(said: dict[str, Any]) -> dict[str, str | None]:
    return dict(zip(ASKED, said["answers"], strict=True))


@pytest.mark.parametrize("name", ASKED)
def test_lint_and_vllm_agree(name: str, answers: dict[str, str | None]) -> None:
    expected, sets = ASKED[name]
    found, answer = errors(profile(*sets)), answers[name]
    if expected is None:
        assert found == set()
        assert answer is None
    else:
        code, said = expected
        assert found == {code}
        assert said in (answer or "")
