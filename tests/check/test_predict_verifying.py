"""What a step waits for while it verifies, and the two parameters of a family: held-out and computed figures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from gemmaspec.check.lint.check import check
from gemmaspec.check.predict.efficiency import Served, fit_law, served
from gemmaspec.check.predict.verifying import Build, FullLayers, Kernel, kernel_of, seconds
from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.profile.load import load_profile

FULL = FullLayers(layers=10, kv_heads=4, queries=8)
"""Those of the 31B."""
UNSPLIT = ("image=vllm/vllm-openai:v0.32.0", "patches.speed=off")
BF16 = ("serve.kv_cache_dtype=auto",)
Steps = Callable[..., dict[tuple[int, int, int], float]]


@pytest.fixture
def steps(capsys: pytest.CaptureFixture[str]) -> Steps:
    """(profile, sets, k, contexts, requests) → milliseconds of a step by k, requests and context."""

    def asked(*sets: str, k: str, context: str, requests: str = "1") -> dict[tuple[int, int, int], float]:
        given = [word for one in ("serve.max_model_len=262144", *sets) for word in ("--set", one)]
        command = ["predict", "spark-31b-mtp", "--json", "--k", k, "--context", context, "--concurrency", requests]
        assert run([*command, *given]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        return {(row["k"], row["concurrency"], row["context"]): row["step_ms"] for row in rows}

    return asked


@pytest.mark.parametrize(
    ("sets", "expected"),
    [((*UNSPLIT, *BF16), 243), (UNSPLIT, 321), (("image=vllm/vllm-openai:v0.32.0",), 175), ((), 164)],
    ids=["0.32.0, BF16", "0.32.0, FP8", "0.32.0 with the patch, FP8", "0.33.0, FP8"],
)
def test_a_long_prompt_on_a_spark_takes_what_the_kernel_takes(
    sets: tuple[str, ...], expected: int, steps: Steps
) -> None:
    """Computed apart from this code, from the same counts of instructions and another base of a step."""
    (step,) = steps(*sets, k="7", context="131072").values()
    assert step == pytest.approx(expected, rel=0.08)


def test_a_published_spark_with_a_stated_length_is_met(steps: Steps) -> None:
    """forums.developer.nvidia.com thread 369114: k=7, prompts over 30,000, 19 to 21 tokens/s at 30 to 35 % accepted."""
    published = [(1 + 7 * rate) / speed * 1000 for rate in (0.30, 0.35) for speed in (19, 21)]
    for sets in ((*UNSPLIT, *BF16), UNSPLIT):
        (step,) = steps(*sets, k="7", context="30000").values()
        assert min(published) * 0.95 < step < max(published) * 1.05


def test_only_drafts_wait_and_more_so_without_the_split(steps: Steps) -> None:
    released, split = (steps(*sets, k="0,7", context="32768") for sets in (UNSPLIT, UNSPLIT[:1]))
    assert released[0, 1, 32768] == pytest.approx(split[0, 1, 32768])
    assert released[7, 1, 32768] > 1.2 * split[7, 1, 32768]


def test_figures_that_were_held_out_are_within_a_quarter() -> None:
    """31B in FP8 on an H100 and an H200, published in 2026; with one share of the bandwidth it was half as fast again."""
    held = [one for one in served() if one.server.startswith("31B, FP8")]
    assert len(held) == 2
    kept = tuple(one for one in served() if one not in held)
    law = fit_law(kept, "hopper", "8-bit")
    for one in held:
        assert off(one, law.overhead_s + one.at_peak_s / law.share) == pytest.approx(1, abs=0.25)


@pytest.mark.parametrize("left", [one for one in served() if one.family == "gb10"], ids=lambda one: one.server)
def test_each_spark_is_foretold_by_the_others(left: Served) -> None:
    kept = tuple(one for one in served() if one != left)
    law = fit_law(kept, "gb10", left.weights)
    assert off(left, law.overhead_s + left.at_peak_s / law.share) == pytest.approx(1, abs=0.25)


def off(one: Served, computed_s: float) -> float:
    return computed_s / one.step_s


def test_one_server_says_nothing_of_an_overhead() -> None:
    (one, *_) = served()
    law = fit_law((one,), one.family, one.weights)
    assert law.overhead_s == 0
    assert law.share == pytest.approx(one.share)


def test_programs_that_do_not_fit_at_once_wait_for_each_other() -> None:
    assert FULL.programs(8, 1) == 16
    assert FULL.programs(5, 1) == 12
    kernel = Kernel(1e-6, 48)
    one, four = (seconds(kernel, FULL, split=False, context=3200, requests=n, tokens=8) for n in (1, 4))
    assert one == pytest.approx(10 * 100 * 1e-6)
    assert four == pytest.approx(2 * one)  # 64 programs, 48 at once
    assert seconds(kernel, FULL, split=True, context=3200, requests=1, tokens=8) == pytest.approx(one * 16 / 48)


def test_nothing_is_computed_for_a_gpu_whose_kernel_nobody_knows() -> None:
    assert kernel_of(Build(capability="12.1", newer=True, fp8=True, split=True))
    assert kernel_of(Build(capability="8.0", newer=True, fp8=False, split=True)) is None


def test_lint_says_of_a_spark_what_predict_computes(steps: Steps) -> None:
    loaded = load_profile("spark-31b-mtp", overrides=list(UNSPLIT))
    (told,) = [one for one in check(loaded, patches={}, asked="0.32.0") if one.code == "GS506"]
    said = re.findall(r"(\d\.\d) tokens after ([\d,]+)", told.message)
    assert [length for _, length in said] == ["32,768", "131,072"]
    for tokens, length in said:
        context = int(length.replace(",", ""))
        found = steps(*UNSPLIT, k="0,7", context=str(context))
        assert float(tokens) == pytest.approx(found[7, 1, context] / found[0, 1, context], abs=0.06)
    hopper = load_profile("spark-31b-mtp", overrides=[*UNSPLIT, "machine=h200", "serve.attention_backend=TRITON_ATTN"])
    (told,) = [one for one in check(hopper, patches={}, asked="0.32.0") if one.code == "GS506"]
    assert "no faster with its assistant than without" in told.message


def test_the_page_has_what_predict_computes(steps: Steps) -> None:
    page = (data.ROOT / "docs" / "explanations" / "patches-for-speed.md").read_text()
    rows = re.findall(r"^\| (0\.3[23]\.0[^|]*) \| (BF16|FP8) \| (\d+) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert len(rows) == 5
    for server, cache, *printed in rows:
        sets = [f"image=vllm/vllm-openai:v{server[:6]}", *(BF16 if cache == "BF16" else ())]
        sets += [] if "patch" in server else ["patches.speed=off"]
        found = steps(*sets, k="7", context="8192,32768,131072")
        assert [int(number) for number in printed] == pytest.approx(list(found.values()), abs=0.6)
