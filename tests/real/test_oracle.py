"""The oracle, in small: the newest release's own parser and engine, on pretended machines, against table and lint.

Needs the managed runtime and the sdist of one release; the whole run is `make oracle`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmaspec.core.releases.facts import facts_for, newest
from tests.support import real

TOOLS = Path(__file__).parent.parent.parent / "tools"
sys.path.insert(0, str(TOOLS))

import oracle as asked  # noqa: E402

pytestmark = [pytest.mark.network, pytest.mark.real_process]


@pytest.fixture(scope="module")
def runtime() -> str:
    """The state folder with the managed runtime."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GEMMASPEC_STATE", str(real.STATE))
    return str(real.STATE)


@pytest.fixture(autouse=True)
def _state(runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMASPEC_STATE", runtime)


@pytest.fixture(scope="module")
def oracle(runtime: str) -> Iterator[asked.Oracle]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GEMMASPEC_STATE", runtime)
        found = asked.Oracle(newest(), "gb10")
    with found:
        yield found


def test_the_parser_has_the_flags_of_the_table_in_all_their_spellings(oracle: asked.Oracle) -> None:
    facts = facts_for(newest())
    assert facts
    assert list(asked.differences(facts, oracle.ask({"flags": True}))) == []


@pytest.mark.parametrize(
    ("machine", "tokens", "sequences"),
    [("gb10", 2496, 256), ("a100", 2496, 256), ("h200", 8192, 1024), ("b200", 16384, 1024)],
)
def test_defaults_are_the_machines(oracle: asked.Oracle, machine: str, tokens: int, sequences: int) -> None:
    model = str(asked.model_folders() / "gemma-4-31B-it")
    found = oracle.ask({"argv": ["--model", model], "machine": machine})["resolved"]
    assert (found["max_num_batched_tokens"], found["max_num_seqs"]) == (tokens, sequences)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-num-batched-tokens=128", "--max-num-seqs=256"], "must be greater than or equal to max_num_seqs"),
        (["--no-enable-chunked-prefill", "--max-num-batched-tokens=4096"], "is smaller than max_model_len"),
        (["--enable-expert-parallel"], "Number of experts in the model must be greater than 0"),
        (["--tensor-parallel-size=2"], "is larger than the number of available GPUs"),
        (["--enable-auto-tool-choice"], "requires --tool-call-parser"),
        (["--gpu-memory-utilization=90"], "less than or equal to 1"),
        (["--enable-prefix-caching=false"], "ignored explicit argument 'false'"),
        (["--served-model-name"], "expected at least one argument"),
        (["--data-parallel-backend=lots"], "data_parallel_backend can only be ray or mp"),
        (["--quantization=modelopt"], "Cannot find the config file for modelopt"),
        (["--disable-sliding-window", "--max-model-len=8192"], "is greater than the derived max_model_len"),
    ],
)
def test_the_engine_says_what_lint_quotes(oracle: asked.Oracle, words: list[str], said: str) -> None:
    found = oracle.ask({"argv": ["--model", str(asked.model_folders() / "gemma-4-31B-it"), *words]})
    assert not found["accepted"]
    assert said in " ".join(found["why"])


def test_lint_and_the_engine_agree_on_random_profiles(oracle: asked.Oracle) -> None:
    import oracle_lint

    with asked.Oracle(newest(), "cpu") as processors:
        found = oracle_lint.compare_release({True: oracle, False: processors}, newest(), 20, 7)
    assert [one for one in found.unexpected if not one.startswith("engine alone")] == []
    assert len(found.unexpected) <= 1, "one in a hundred is a miss"
