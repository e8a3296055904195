"""The runtime that the tiny pair runs in: a released vLLM, built for real (once; kept in .tools/state)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.runtime import RuntimeSpec, describe, ensure_runtime
from gemmaspec.serve.prepare import runtime_spec
from tests.support.real import STATE, TOOLS

pytestmark = [pytest.mark.real_process, pytest.mark.network]


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> RuntimeSpec:
    """The runtime of the profile tiny-cpu, finished."""
    monkeypatch.setenv("GEMMASPEC_STATE", str(STATE))
    spec = runtime_spec(load_profile("tiny-cpu"))
    ensure_runtime(spec, progress=lambda _: None)
    return spec


def run(interpreter: Path, *arguments: str) -> str:
    done = subprocess.run([interpreter, *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_holds_the_release_with_the_torch_that_the_wheel_pins(spec: RuntimeSpec) -> None:
    facts = describe(spec).facts
    assert facts["vllm"] == f"{spec.vllm}+cpu"
    assert facts["torch"].partition("+")[0] == "2.13.0"
    assert facts["transformers"].startswith("5.")


def test_finding_it_again_takes_no_time(spec: RuntimeSpec) -> None:
    said: list[str] = []
    began = sum(os.times()[:4])  # of this process and its children: a busy machine takes longer, and computes as long
    ensure_runtime(spec, progress=said.append)
    assert sum(os.times()[:4]) - began < 0.1
    assert said == []


def test_pictures_can_be_prepared_with_the_torchvision_that_is_there(spec: RuntimeSpec) -> None:
    code = (
        "import torch; from torchvision.transforms.v2 import functional as f;"
        "print(tuple(f.resize(torch.zeros(3, 8, 8), [4, 4]).shape))"
    )
    assert run(describe(spec).interpreter, "-c", code).strip() == "(3, 4, 4)"


def test_it_needs_nothing_of_the_environment_that_built_it(spec: RuntimeSpec) -> None:
    listed = run(describe(spec).interpreter, "-I", "-c", "import sys; print('\\n'.join(sys.path))")
    folders = [Path(line) for line in listed.splitlines()]
    assert not any(folder.is_relative_to(sys.prefix) for folder in folders), folders
    own = [folder for folder in folders if folder.is_relative_to(TOOLS.parent)]
    assert all(folder.is_relative_to(TOOLS) for folder in own), own
