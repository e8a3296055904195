"""One question, asked in every way: fit, predict, lint, the dry runs, the pages and the profiles do not contradict.

Twelve questions that users ask before they start a server. Nine were once answered in two ways.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.check.lint.machine import SEVERAL_ON_SPARK
from gemmaspec.check.use_cases.lint import COSTLY
from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.machines import MACHINES
from tests.support.docker_support import silent_registry
from tests.support.fake_engine import FakeMachine

Ask = Callable[..., dict[str, Any]]
DOCS = data.ROOT / "docs"
SPARK, H100 = "spark-31b-mtp", "nvidia-31b-mtp"
LONG = "131000"
"""All that the profile takes, but for an answer."""
TP2 = ("--set", "serve.tensor_parallel_size=2")
OWN_CHOICE = ("--set", "serve.attention_backend=")
"""vLLM's own choice of a backend."""
NO_IMAGES = (*OWN_CHOICE, "--set", "serve.limit_mm_per_prompt={image: 0, video: 0}")


@pytest.fixture
def ask(
    machine: FakeMachine, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Ask:
    """Return the document of a command, on a machine whose engines are fakes and for which no registry answers."""
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "state"))
    silent_registry(tmp_path, monkeypatch)

    def answer(*words: str) -> dict[str, Any]:
        run([*words, "--json"])
        return dict(json.loads(capsys.readouterr().out))

    return answer


def codes(document: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in document["profiles"][0]["findings"]}


def by_k(document: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {row["k"]: row for row in document["rows"]}


def page(name: str) -> str:
    return " ".join((data.ROOT / name).read_text(encoding="utf-8").split())


def test_does_the_draft_of_a_spark_pay_after_a_long_prompt(ask: Ask) -> None:
    rows = by_k(ask("predict", SPARK, "--k", "0,7", "--concurrency", "1", "--context", LONG))
    fitted = by_k(ask("fit", SPARK, "--cached", LONG)["speed"])
    assert {k: row["step_ms"] for k, row in fitted.items()} == {k: row["step_ms"] for k, row in rows.items()}
    assert rows[7]["speedup"] > 1.5
    assert "GS506" not in codes(ask("profile", "lint", SPARK))
    assert ask("up", SPARK, "--dry-run")["notes"] == []
    assert {cell["arm"] for cell in ask("bench", SPARK, "--dry-run")["cells"]} == {"no speculation", "mtp k=7"}


def test_how_long_does_a_step_of_a_spark_take(ask: Ask) -> None:
    """The page's table is held by test_predict_verifying; here is what its sentence says of no draft."""
    text = page("docs/explanations/patches-for-speed.md")
    printed = re.search(r"Without a draft a step takes (\d+) ms after 8,192 tokens and (\d+) after 131,072", text)
    assert printed
    rows = ask("predict", SPARK, "--k", "0", "--concurrency", "1", "--context", f"8192,{LONG}")["rows"]
    assert [int(number) for number in printed.groups()] == [round(row["step_ms"]) for row in rows]


def test_which_k_for_several_requests_to_a_dense_model(ask: Ask) -> None:
    rows = by_k(ask("predict", SPARK, "--k", "2,4,7", "--concurrency", "4", "--context", "1024"))
    spec = load_profile(SPARK).profile.speculative
    assert spec
    assert max(rows, key=lambda k: rows[k]["tokens_per_second"]) == spec.k_at(4)
    assert "GS505" not in codes(ask("profile", "lint", SPARK))
    assert "num_speculative_tokens=2" not in (data.PROFILES / f"{SPARK}.yaml").read_text()


def test_which_k_for_several_requests_to_a_mixture(ask: Ask) -> None:
    """Computed, 4 is as good as 2; as published for eight requests, 2 is. Both commands say so."""
    name = "spark-26b-a4b-mtp"
    computed = ask("predict", name, "--k", "2,4", "--concurrency", "8")
    rows = by_k(computed)
    assert SEVERAL_ON_SPARK in computed["notes"]
    assert rows[2]["interval"][1] > rows[4]["tokens_per_second"]
    findings = ask("profile", "lint", name)["profiles"][0]["findings"]
    assert any(SEVERAL_ON_SPARK in finding["message"] for finding in findings)
    assert SEVERAL_ON_SPARK not in ask("predict", name, "--k", "2,4", "--concurrency", "1")["notes"]


def test_does_it_fit_a_card_of_32_gb(ask: Ask) -> None:
    assert not ask("fit", H100, "--machine", "rtx-5090")["ok"]
    assert "40 GB or more" in load_profile(H100).profile.summary
    (row,) = re.findall(r"\| 32 GB \|[^|]*\|([^|]*)\|", page("README.md"))
    named = re.findall(r"`([a-z0-9-]+)`", row)
    assert H100 not in named
    for name in named:
        assert ask("fit", name, "--machine", "rtx-5090")["ok"], name


def test_how_fast_are_two_gpus(ask: Ask) -> None:
    """No bandwidth of two: as two were measured, or no figure and the reason, in both commands."""
    one, two = (
        by_k(ask("predict", H100, *sets, "--k", "4", "--concurrency", "1", "--context", "256"))[4]["step_ms"]
        for sets in (("--machine", "h100"), ("--machine", "2xh100", *TP2))
    )
    assert one / 2 < two < one
    for machine in ("b200", "a100"):
        predicted = ask("predict", H100, "--machine", machine, *TP2)
        fitted = ask("fit", H100, "--machine", machine, *TP2)["speed"]
        assert predicted["rows"] == fitted["rows"] == []
        assert any("no measurement covers the link" in note for note in predicted["notes"])
        assert set(fitted["notes"]) & set(predicted["notes"])


def test_how_long_does_a_step_of_fp8_weights_take(ask: Ask) -> None:
    text = page("docs/explanations/patches-for-speed.md")
    printed = re.search(r"H100 ([\d.]+) ms were published, and `predict` computes ([\d.]+\d)", text)
    assert printed
    sets = ("--set", "target.model=google/gemma-4-31B-it", "--set", "target.quantization=fp8")
    answered = ask("predict", H100, *sets, "--machine", "h100", "--k", "0", "--concurrency", "1", "--context", "256")
    step = by_k(answered)[0]["step_ms"]
    assert step == pytest.approx(float(printed[2]), abs=0.06)
    assert step == pytest.approx(float(printed[1]), rel=0.1)


def test_what_does_vllm_as_released_make() -> None:
    """One pair of measured figures, wherever it is named."""
    (own,) = [cell for cell in load_profile(H100).profile.measured if cell.counted]
    noted = re.search(r"vLLM as released ([\d.]+\d) and ([\d.]+\d)", own.note or "")
    assert noted
    short = str(round(float(noted[1])))
    printed = re.search(r"vLLM 0.32.0 gives up CUDA graphs for it and makes (\d+) and (\d+)\.", page("README.md"))
    assert printed
    assert [float(figure) for figure in printed.groups()] == pytest.approx([float(noted[1]), float(noted[2])], abs=0.6)
    assert re.search(rf"\| vLLM as released \| [\d.]+ \({short}\)", page("docs/explanations/patches-for-speed.md"))
    assert f"vLLM as released makes {short}." in page("docs/guides/kubernetes.md")
    comment = " ".join((data.PROFILES / "_nvidia-heads.yaml").read_text().replace("#", " ").split())
    assert f"then made {short} tokens/s, and {round(own.baseline or 0)} without its draft" in comment


def test_what_does_it_make_as_shipped(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    (own,) = [cell for cell in load_profile(H100).profile.measured if cell.counted]
    (headline,) = re.findall(r"decodes one request with \*\*(\d+)\*\*", page("README.md"))
    assert headline == str(round(own.tokens_per_second or 0))
    cells = ask("predict", H100, "--machine", "h100", "--k", "4", "--concurrency", "1", "--context", "256")
    assert by_k(cells)[4]["decoding_per_second"] == pytest.approx(own.tokens_per_second, rel=0.05)
    run(["fit", H100, "--machine", "h100", "--explain"])
    speeds = re.findall(
        r"^ +(?:measured|mtp|no spec).*?[\d.]+ tokens/s (\w+).*$", capsys.readouterr().out, re.MULTILINE
    )
    assert set(speeds) >= {"with", "decoding"}, "each figure of our own says what it counts"
    run(["predict", H100, "--machine", "h100", "--concurrency", "1", "--context", "256"])
    assert "tokens/s with the prompt" in capsys.readouterr().out


def test_has_a_12b_with_sound_alone_full_graphs(ask: Ask) -> None:
    """Its sound keeps the masks, so vLLM takes the composite backend (test_one_answer asked vLLM itself)."""
    name, machine = "spark-12b-mtp", ("--set", "machine=h200")
    fitted = ask("fit", name, *machine, *NO_IMAGES)
    assert (fitted["attention"]["target"], fitted["flags"]["graphs"]) == ("TRITON_FLASH_ATTN", "PIECEWISE")
    assert any("GS501" in problem for problem in fitted["problems"])
    assert "GS501" in codes(ask("profile", "lint", name, *machine, *NO_IMAGES))
    notes = ask("predict", name, *machine, *NO_IMAGES)["notes"]
    assert any(note.startswith("CUDA graphs: target PIECEWISE") for note in notes)


def test_which_graphs_has_vllms_own_choice_on_hopper(ask: Ask) -> None:
    assert "GS501" in codes(ask("profile", "lint", H100, *OWN_CHOICE, "--set", "machine=h100"))
    assert any("GS501" in problem for problem in ask("fit", H100, *OWN_CHOICE, "--machine", "h100")["problems"])
    notes = ask("predict", H100, *OWN_CHOICE, "--machine", "h100")["notes"]
    assert any(note.startswith("CUDA graphs: target PIECEWISE, draft NONE") for note in notes)


def test_has_the_draft_of_spark_31b_e2b_graphs(ask: Ask) -> None:
    name = "spark-31b-e2b"
    assert "GS501" not in codes(ask("profile", "lint", name))
    planned = ask("up", name, "--dry-run")
    assert planned["graphs"] == []
    assert not {note["code"] for note in planned["notes"]} & COSTLY
    fitted, computed = ask("fit", name)["speed"], ask("predict", name, "--concurrency", "1")
    assert [row["step_ms"] for row in fitted["rows"]] == [row["step_ms"] for row in computed["rows"]]
    assert not any("CUDA graphs" in note for note in computed["notes"])


def test_how_much_memory_has_a_spark(ask: Ask) -> None:
    gib = (MACHINES["dgx-spark"].memory_gb or 0) * 1e9 / 2**30
    assert ask("fit", SPARK)["machine"]["memory"] / 2**30 == pytest.approx(gib, abs=0.01)
    assert f"has {gib:.2f} GiB" in page("docs/guides/troubleshooting.md")
    assert f"of its {gib:.2f} GiB about 102 are free" in page("gemmaspec/check/lint/codes.md")
