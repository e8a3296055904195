"""Speed patches of Triton's attention over the whole domain that their code reaches, against its definition."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from gemmaspec.check.proof.prove import NUMBERS, Probes
from gemmaspec.check.proof.source import source_of
from gemmaspec.core import launcher
from gemmaspec.core.patching.patch import load_patches
from gemmaspec.core.patching.plan import chain

pytestmark = pytest.mark.network
BATCHES: Final = 60
"""For each tree, others on each release. A longer search: pass seconds to the script by hand."""
CASES: Final = 200
FUZZER: Final = Path(__file__).parent.parent / "support" / "fuzz_attention.py"
KERNELS: Final = "vllm/v1/attention/ops/triton_unified_attention.py"
MASK: Final = b"        and use_causal\n        and not use_per_seq_causal\n        and num_queries_per_kv <= 16\n"
PROBE: Final = """
import json, fuzz_attention
def probe():
    return True, json.dumps(fuzz_attention.searched(json.loads({!r})))
"""
SHELF: Final = load_patches()

Run = Callable[..., list[list[Any]]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, probes: Probes, triton: Path) -> Run:
    """What computes a job with the vllm/ of these folders."""
    probe = tmp_path_factory.mktemp("fuzz") / "probe.py"

    def fuzz(*path: Path, **job: Any) -> list[list[Any]]:
        probe.write_text(PROBE.format(json.dumps(job)))
        answer = probes.run([*path, triton, FUZZER.parent], {"fuzz": probe})["fuzz"]
        assert answer.state == "open", answer.seen
        found: list[list[Any]] = json.loads(answer.seen)
        return found

    return fuzz


def wrong(run: Run, release: str, change: Callable[[bytes], bytes] = lambda text: text, **job: Any) -> list[Any]:
    """Return the batches that a patched release computes wrong, and the released one right."""
    source = source_of(release)
    patches = {
        one.id: one for patch in SHELF.values() if (patch.folder / NUMBERS).is_file() for one in chain(patch, SHELF)
    }
    plan = launcher.Plan(1, "", "", (), tuple(patches.values()), "")
    results, changed = launcher.decide_plan(plan, release, launcher.reader_of(source / "vllm"))
    assert {result.state for result in results} <= {"applies", "not-needed"}
    changed = {**changed, KERNELS: change(changed[KERNELS])}
    with tempfile.TemporaryDirectory() as folder:
        overlay = launcher.build_overlay(source / "vllm", Path(folder), changed)
        cases = run(overlay, source, **job)
    assert cases
    off = [number for number, distance, rounding, _ in cases if not distance <= rounding]
    stock = run(source, **{**job, "only": off}) if off else []
    right = {number for number, distance, rounding, _ in stock if distance <= rounding}
    return [case for case in cases if case[0] in right]


@pytest.mark.parametrize(("release", "seed"), [("0.26.0", 1), ("0.32.0", 2), ("0.33.0", 4)])
def test_no_patched_kernel_is_wrong_where_the_released_one_is_right(run: Run, release: str, seed: int) -> None:
    assert wrong(run, release, seed=seed, only=[*range(BATCHES)]) == []


def ignoring(text: bytes) -> bytes:
    """Return the kernels with a launch of several tokens in a block, whatever the mask."""
    assert MASK in text
    return text.replace(MASK, MASK.splitlines(keepends=True)[-1])


def test_a_random_search_finds_a_block_of_a_prompt_that_ignores_the_mask(run: Run) -> None:
    """Nothing tells the search which masks, windows and heads are wrong; of 120 batches 4 were."""
    seed = random.SystemRandom().randrange(10**6)
    for first in range(1, CASES, 12):
        if found := wrong(run, "0.32.0", ignoring, seed=seed, only=[*range(first, first + 12)]):
            assert wrong(run, "0.32.0", seed=seed, only=[number for number, *_ in found]) == []
            return
    pytest.fail(f"{CASES} batches of seed {seed} do not show it")


@pytest.mark.parametrize(
    "kind",
    [
        {"scales": "int4", "dtype": "float32", "head": 256},
        {"scales": "tensor", "dtype": "float8_e4m3fn"},
        {"dtype": "bfloat16"},
    ],
    ids=str,
)
def test_int4_fp8_and_bf16_are_computed_as_they_are_defined(run: Run, kind: dict[str, Any]) -> None:
    """Otherwise the search would compare noise: each stays below a bound far from what a wrong mask gives."""
    plain = {
        "scales": "",
        "output_scale": 0,
        "lookback": -1,
        "prefix": [0, 0],
        "clamped": False,
        "scores": 0,
        "images": [],
    }
    like = {**plain, "causal": True, "window": 0, **kind}
    found = run(source_of("0.33.0"), seed=5, only=[*range(1, 5)], like=like)
    assert [case for case in found if not case[1] <= min(case[2], 0.13)] == []
