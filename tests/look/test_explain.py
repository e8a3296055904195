"""`explain`: every code that a message names can be asked."""

from __future__ import annotations

import json

import pytest

from gemmaspec.cli.app import run
from gemmaspec.look.explain import explain, names

ALL = [(kind, name) for kind, of_kind in names().items() for name in of_kind]


@pytest.mark.parametrize(("kind", "name"), ALL, ids=[name for _, name in ALL])
def test_what_is_listed_is_explained(kind: str, name: str) -> None:
    (first, *_) = explain(name)
    assert len(first.text.split()) > (0 if kind == "exit codes" else 2)
    assert "](" not in first.text


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("GS505", "a verifying step is then bound by compute"),
        ("gs505", "k that pays no more note: A 26B-A4B with its assistant"),
        ("gs505", "bound by compute"),
        ("exit code 5", "does not fit this vLLM"),
        ("Acceptance length", "Tokens for each step of the target"),
        ("no-weights", "There is no file with weights. Only serve.load_format: dummy starts without weights."),
        ("scale-missing", "hf download …"),
        ("awq", "patch nvfp4-awq"),
        ("plan.json", "detects a plan that was edited"),
        ("report.json", "which plan"),
        ("launch.py", "--expect-plan"),
        ("s12", "cached prompt"),
        ("triton-verify-split-kv", "gemmaspec patch explain triton-verify-split-kv"),
    ],
)
def test_a_code_is_explained_in_any_form(asked: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", *asked.split()]) == 0
    assert said in " ".join(capsys.readouterr().out.split())


def test_the_link_of_a_finding_is_a_command_that_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "lint", "tiny-cpu", "--set", "speculative.k=1", "--json"]) == 2
    assert run(["profile", "lint", "spark-31b-mtp", "--set", "serve.extra_args=[--no-such]", "--json"]) == 2
    document = json.loads(capsys.readouterr().out.split("\n}\n", 1)[1])
    command = document["profiles"][0]["findings"][0]["documentation"].split()
    assert command[:2] == ["gemmaspec", "explain"]
    assert run(command[1:]) == 0


def test_what_is_not_known_is_an_error_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "GS999"]) == 2
    assert run(["explain", "supersede"]) == 2
    assert "did you mean superseded?" in capsys.readouterr().err
