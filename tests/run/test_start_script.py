"""The script that starts a stack inside its image runs what its Compose file runs, whatever the profile says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemmaspec.cli.app import run
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.stack.build import build_stack
from gemmaspec.run.stack.script import start_script

HOSTILE = 'it\'s $(touch here) `id` "q" ${HOME} \\ ; & | > x'
OVERRIDES = [
    f"serve.extra_args={json.dumps([HOSTILE])}",
    f"env.ANY={json.dumps(HOSTILE)}",
    "pass_env=[HF_TOKEN,VLLM_API_KEY]",
]


def service(overrides: list[str]) -> dict[str, Any]:
    """The service in the stack's compose.yaml, with dollars as a container gets them."""
    text = build_stack(load_profile("tiny-cpu", overrides=overrides), form="folder").files["compose.yaml"]
    found: dict[str, Any] = yaml.safe_load(text.replace("$$", "$"))["services"]["vllm"]
    return found


@pytest.mark.parametrize("overrides", [[], OVERRIDES])
def test_it_runs_the_command_of_the_container_with_its_variables(overrides: list[str], tmp_path: Path) -> None:
    script = start_script(load_profile("tiny-cpu", overrides=overrides))
    shown = script.replace("\nexec ", "\nenv -0; printf '\\1'; printf '%s\\0' ")
    done = subprocess.run(
        ["sh", "-c", shown], env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path, capture_output=True, check=True
    )
    variables, _, words = done.stdout.decode().partition("\1")
    wanted = service(overrides)
    assert words.split("\0")[:-1] == [*wanted["entrypoint"], *wanted["command"]]
    given = {name: value for name, value in wanted["environment"].items() if value is not None and "$" not in name}
    has = dict(line.split("=", 1) for line in variables.split("\0") if "=" in line)
    assert {name: has.get(name) for name in given if name != "VLLM_API_KEY"} == {
        name: value for name, value in given.items() if name != "VLLM_API_KEY"
    }
    assert not {"VLLM_API_KEY", "HF_TOKEN"} & has.keys()
    assert list(tmp_path.iterdir()) == []


def test_render_prints_it_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", "tiny-cpu", "--out", str(tmp_path / "stack"), "--json"]) == 0
    script = json.loads(capsys.readouterr().out)["script"]
    assert script == start_script(load_profile("tiny-cpu"))
    assert run(["render", "tiny-cpu", "--to", "kubernetes", "--out", str(tmp_path / "k8s"), "--json"]) in (0, 2)
    assert '"script"' not in capsys.readouterr().out
