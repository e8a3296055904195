"""`share`: what is sent of a result, what cannot stand as a figure, and the check on the receiving side."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.bench.share import doubts, markdown, parse, shared
from gemmaspec.cli.app import run
from gemmaspec.errors import UsageError

ROOT = Path(__file__).parent.parent


def row(k: int, speed: float, **more: Any) -> dict[str, Any]:
    length = 1 + 0.6 * k
    return {
        "method": "mtp" if k else "none", "k": k, "concurrency": 1, "context": 256, "acceptance": [0.6] * k,
        "tokens_per_second": speed, "step_ms": 11.0, "acceptance_length": length, "spread": 0.01, "ttft_ms": 80.0,
        "steady": True, "rounds": 2, "patches": ["a-patch"] if k else [], "vllm": "0.32.0", **more,
    }  # fmt: skip


def document(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    lock = {
        "image.name": "vllm/vllm-openai:v0.32.0", "image.digest": "sha256:ab", "target.model": "a/b",
        "draft.model": "/home/me/draft", "versions.vllm": "0.32.0", "plan": "sha256:cd",
    }  # fmt: skip
    return {
        "schema": 1, "kind": "gemmaspec bench", "complete": True, "date": "2026-11-23T08:00:00Z", "gemmaspec": "0.2.0",
        "profile": "mine", "rows": list(rows) or [row(0, 90.0), row(4, 300.0)],
        "settings": {
            "overrides": ["env.A=/home/me"], "prompts": "/home/me/prompts", "prompts_sha256": "ef" * 32, "url": None,
            "any_text": False, "ignore_eos": False, "max_tokens": 256, "temperature": 0.0,
        },
        "provenance": {
            "machine": "h200", "gpu": ["NVIDIA H200"], "driver": "580.1", "host": "secret-host",
            "arms": {"mtp/4": {"lock": lock, "overrides": ["x=/home/me"]}},
        },
        "cells": [{**row(4, 300.0), "acceptance_by_category": {"code": [0.9, 0.8], "chat": [0.5, 0.2]}}],
        **more,
    }  # fmt: skip


def test_nothing_private_is_shared() -> None:
    text = markdown(shared(document()))
    assert not re.search(r"/home|secret-host|overrides|env\.A", text)
    for said in (
        "NVIDIA H200",
        "sha256:ab",
        "a/b",
        "efefefefefef",
        "| mtp | 4 | 1 | 256 | 300.0 |",
        "code 2.70, chat 1.70",
    ):
        assert said in text


def test_a_server_by_its_address_is_not_shared() -> None:
    whole = document()
    whole["provenance"]["arms"] = {"mtp/4": {"url": "http://10.0.0.1"}}
    with pytest.raises(UsageError, match="what ran there is not known"):
        shared(whole)


@pytest.mark.parametrize(
    ("whole", "said"),
    [
        (document(complete=False), "not complete"),
        (document(row(4, 300.0)), "nothing was measured without speculation"),
        (document(row(0, 90.0), row(4, 500.0)), "where steps of 11.0 ms with k 4 give 454.5 at most"),
        (document(row(0, 90.0), row(4, 300.0, acceptance_length=5.5)), "where 5 is the most"),
        (document(row(0, 90.0, steady=False)), "not steady"),
        (document(row(0, 90.0, tokens_per_second=-1)), "not positive"),
        (document(provenance={"machine": "h200", "gpu": None, "arms": {}}), "the GPU is not known"),
    ],
)  # fmt: skip
def test_what_cannot_stand_is_named(whole: dict[str, Any], said: str) -> None:
    assert any(said in one for one in doubts(shared(whole)))


def test_a_sound_result_has_no_doubts() -> None:
    assert list(doubts(shared(document()))) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "gemmaspec share", "schema": 1}', "[" * 100_000])
def test_what_is_not_shared_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text, file="x.md")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a result as bench writes it: with what `result.parse` needs of each cell."""
    cell = {
        **row(4, 300.0), "key": "x", "round": 1, "output_tokens_per_second": 300.0, "prompt_tokens": 256.0,
        "foreign_tokens": 0, "acceptance_by_category": {"code": [0.9]}, "reference": {"steady": True},
        "ttft_ms": {"median": 80.0}, "tpot_ms": None,
    }  # fmt: skip
    (tmp_path / "result.json").write_text(json.dumps({**document(), "cells": [cell]}))
    return tmp_path


def test_share_shows_first_and_sends_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["share", str(folder), "--repo", "o/n"]) == 0
    printed = capsys.readouterr()
    assert (folder / "share.md").read_text() == printed.out
    assert "nothing was sent" in printed.err
    assert "gh issue create --repo o/n --title 'mine on NVIDIA H200, 2026-11-23' --body-file" in printed.err


def test_the_receiving_side_checks_the_issue(folder: Path) -> None:
    assert run(["share", str(folder)]) == 0
    command = [sys.executable, str(ROOT / "tools" / "check_share.py"), str(folder / "share.md")]
    good = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (good.returncode, good.stderr) == (0, "")
    assert "| mtp | 4 | 1 | 256 | 300.0 |" in good.stdout
    text = (folder / "share.md").read_text().replace('"tokens_per_second": 300.0', '"tokens_per_second": 900.0')
    (folder / "share.md").write_text(text)
    bad = subprocess.run(command, capture_output=True, text=True, check=False)
    assert bad.returncode == 1
    assert "row 2: 900.0 tokens/s" in bad.stderr


def test_what_cannot_stand_is_only_written_by_force(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**whole, "complete": False}))
    assert run(["share", str(folder)]) == 1
    assert not (folder / "share.md").exists()
    assert "the run is not complete" in capsys.readouterr().err
    assert run(["share", str(folder), "--force"]) == 0
