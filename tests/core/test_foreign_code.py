"""What a profile makes a server run is said in one line, before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gemmaspec.check.use_cases.lint import stop_on_errors
from gemmaspec.cli.app import run
from gemmaspec.core.profile.foreign_code import code_of, is_plain
from gemmaspec.core.profile.load import load_profile
from tests.support.lint_cases import BASE, MTP

IMAGE = "image=vllm/vllm-openai:v0.32.0"
CASES = [
    ((), "the image vllm/vllm-openai:v0.32.0"),
    (("image=somebody/vllm:1",), "the image somebody/vllm:1"),
    (("serve.trust_remote_code=true",), "(trust_remote_code)"),
    (("serve.extra_args=[--trust-remote-code]",), "(trust_remote_code)"),
    (("runtime.python=/opt/python",), "the interpreter /opt/python"),
    (("watch.hook=[/usr/bin/mail, me]",), "the hook /usr/bin/mail, by watch"),
    (("serve.extra_args=[--middleware=some.thing]",), "--middleware some.thing"),
    (("serve.extra_args=[--tool-parser-plugin=/x.py]",), "--tool-parser-plugin /x.py"),
    (("env.VLLM_PLUGINS=mine",), "the variable VLLM_PLUGINS"),
    (("env.LD_PRELOAD=/x.so",), "the variable LD_PRELOAD"),
    (("env.PYTHONSTARTUP=/x.py",), "the variable PYTHONSTARTUP"),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "mine.yaml"
    made.write_text(BASE)
    return made


@pytest.mark.parametrize(("sets", "says"), CASES)
def test_what_runs_is_named(file: Path, sets: Sequence[str], says: str) -> None:
    code = code_of(load_profile(str(file), overrides=(IMAGE, *MTP, *sets)).profile)
    assert any(says in one for one in code), code
    assert is_plain(code) == (not sets)


@pytest.mark.parametrize(("sets", "says"), CASES[1:])
def test_lint_says_it_in_one_line(
    file: Path, sets: Sequence[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["profile", "lint", str(file), *(word for one in (IMAGE, *MTP, *sets) for word in ("--set", one))])
    lines = [line for line in capsys.readouterr().out.splitlines() if "runs code of: " in line]
    assert len(lines) == 1
    assert says in lines[0]


def test_a_checkpoint_whose_code_runs_is_named_by_every_start(file: Path) -> None:
    told: list[str] = []
    for sets, lines in ((), 0), (("serve.trust_remote_code=true",), 1):
        told.clear()
        stop_on_errors(load_profile(str(file), overrides=(IMAGE, *MTP, *sets)), told.append, release=None)
        assert len([line for line in told if line.startswith("runs code of: ")]) == lines


def test_a_dry_run_names_it_once(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["up", "tiny-cpu", "--engine", "process", "--dry-run", "--set", "serve.trust_remote_code=true"]
    assert run(asked) == 0
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("runs code of: ") == 1
