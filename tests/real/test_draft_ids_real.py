"""A draft whose head has a list of ids, for real: the target's own text, and the target's own distribution.

Four starts of the tiny assistant: without a draft; with one that lacks half of the ids, drafting greedily and by lot;
and with a list that bench counted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.real.test_servers import chat, text_of
from tests.support import real, sampled
from tests.support.real import PORT, PROFILE, gemmaspec
from tests.support.sampled import Sampled

pytestmark = pytest.mark.real_process
PROMPTS = ("Tell me about drafts.", "Count from one to ten.", "Why is the sky blue?")
PATCHED = "patches: {required: [cpu-expand-sampling, cpu-top-k-no-rows, mtp-draft-ids]}\n"
BY_LOT = "speculative: {draft_sample_method: probabilistic}\n"


def up(more: str, *arguments: str) -> dict[str, object]:
    """Start the run's profile with more YAML, and return the answer to its first request."""
    real.write_profile(more, extends="tiny-cpu-mtp")
    words = ("--engine", "process", "--set", f"serve.port={PORT}", "--json", *arguments)
    done = gemmaspec("up", PROFILE, *words)
    assert done.code == 0, done.err
    answer: dict[str, object] = done.json["answer"]
    return answer


def down() -> None:
    assert gemmaspec("down", PROFILE).code == 0


def greedy() -> list[str]:
    return [text_of(chat(prompt)) for prompt in PROMPTS]


def listed(file: Path) -> str:
    return f"draft: {{model: state:tiny/tiny-mtp, ids: {file}}}\n{PATCHED}"


@pytest.fixture(scope="module")
def alone() -> tuple[list[str], Sampled]:
    """What the target says without a draft."""
    up("", "--no-spec")
    said = greedy(), sampled.answers()
    down()
    return said


def ids_of(texts: Sequence[str]) -> set[int]:
    """The ids of texts, by the running server."""
    import httpx

    found: set[int] = set()
    for text in texts:
        asked = {"model": "tiny", "prompt": text, "add_special_tokens": False}
        reply = httpx.post(f"http://127.0.0.1:{PORT}/tokenize", json=asked, timeout=60, trust_env=False)
        found |= set(reply.json()["tokens"])
    return found


@pytest.mark.parametrize("more", ["", BY_LOT], ids=["greedy", "by lot"])
def test_half_of_the_ids_change_no_answer(more: str, alone: tuple[list[str], Sampled], tmp_path: Path) -> None:
    """Also of answers with ids that the draft cannot propose: those come from the target."""
    file = tmp_path / "ids.json"
    file.write_text(json.dumps({"ids": every_other()}))
    answer = up(listed(file) + more)
    assert int(str(answer["draft_tokens"])) > 0
    said = greedy()
    assert any(one % 2 for one in ids_of(said)), "every answer can be drafted, so nothing was shown"
    assert said == alone[0]
    sampled.same_distribution(sampled.answers(), alone[1])
    assert "the draft's head has 1536 of 3072 ids" in gemmaspec("logs", PROFILE).out
    down()


def every_other() -> str:
    return ",".join(str(one) for one in range(0, 3072, 2))


def test_a_list_that_bench_counted_is_accepted_as_all_ids_are(tmp_path: Path) -> None:
    """Its answers need 60 ids: a list of an eighth of the vocabulary has them, and loses no acceptance."""
    prompts, file = tmp_path / "prompts", tmp_path / "ids.json"
    prompts.mkdir()
    (prompts / "chat.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    lengths = {}
    for name, more, arguments in (
        ("all", PATCHED, ("--save-ids", str(file))),
        ("listed", listed(file), ()),
    ):
        real.write_profile(more, extends="tiny-cpu-mtp")
        words = ("--acceptance", "--each", "0", "--prompts", str(prompts), "--max-tokens", "48", "--json")
        own = ("--engine", "process", "--set", f"serve.port={PORT}", "--out", str(tmp_path / name))
        done = gemmaspec("bench", PROFILE, *words, *own, *arguments)
        assert done.code == 0, done.err
        (row,) = done.json["rows"]
        lengths[name] = row["acceptance_length"]
    assert len(json.loads(file.read_text())["ids"]) > 0
    assert lengths["listed"] == pytest.approx(lengths["all"], abs=0.02)
