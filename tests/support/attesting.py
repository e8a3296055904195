"""A FAKE vLLM that goes on running, so that its processes attest; tests/real/test_attest_real.py has the real one."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.launching import Place, make_place, plan_of

SERVE = """\
import os, sys
import vllm.v1.core
from vllm.plugins import load_general_plugins
load_general_plugins()
exec(os.environ.get("TAMPER", ""))
from uvicorn.server import Server
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.worker.cpu_worker import CPUWorker
CPUWorker().compile_or_warm_up_model()
EngineCoreProc().run_busy_loop()
Server().serve()
print("up", flush=True)
sys.stdin.read()
"""
"""Loads its plugins as vLLM does, does what TAMPER says, goes through vLLM's doors in one process, and serves."""
PLUGINS = """\
import os
from importlib.metadata import entry_points
def load_general_plugins():
    names = os.environ.get("VLLM_PLUGINS")
    for plugin in entry_points(group="vllm.general_plugins"):
        if names is None or plugin.name in names.split(","):
            plugin.load()()
"""
DOORS = {
    "vllm/plugins.py": PLUGINS,
    "vllm/v1/engine/core.py": "class EngineCoreProc:\n    def run_busy_loop(self):\n        pass\n",
    "vllm/v1/worker/cpu_worker.py": "class CPUWorker:\n    def compile_or_warm_up_model(self):\n        pass\n",
    "uvicorn/server.py": "class Server:\n    def serve(self):\n        pass\n",
}
"""What core/launcher/attest_sum.py follows, FAKE; tests/core/test_patching_releases.py looks for them in vLLM's releases."""
FOR_S = 120.0
"""How long a test waits at most; what it waits for comes within seconds."""


def serving_place(root: Path) -> Place:
    """An environment whose `vllm` goes on running."""
    place = make_place(root)
    write_doors(place.site)
    write_program(place, f"#!{place.python}\n{SERVE}")
    return place


def write_doors(folder: Path) -> None:
    """Write the modules of a fake vLLM and a fake uvicorn that every server goes through."""
    (folder / "vllm/__init__.py").write_text("")
    for path, text in DOORS.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def write_program(place: Place, text: str) -> Path:
    """Write the program that the launcher becomes."""
    program = place.python.parent / "vllm"
    program.write_text(text)
    program.chmod(0o755)
    return program


@contextmanager
def served(
    place: Place, plan: Mapping[str, Any] | None = None, *command: str, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A launched server, which ends with the block; what it says on stderr is `said(place)`."""
    place.write_plan(plan or plan_of())
    with (place.run_dir.parent / "err").open("w") as err:
        process = subprocess.Popen(
            place.argv(*command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True,
            env={**os.environ, **(env or {})}, cwd=place.run_dir.parent,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(place: Place) -> str:
    """What a served server has said on stderr."""
    return (place.run_dir.parent / "err").read_text()


def attested(place: Place) -> dict[str, Any] | None:
    """The sum of what the processes attest, as it is now."""
    try:
        found: dict[str, Any] = json.loads((place.run_dir / "attested.json").read_text())
    except FileNotFoundError:
        return None
    return found


def until(condition: Callable[[], Any]) -> Any:
    """Wait for something to come true, and return it."""
    ends = time.monotonic() + FOR_S
    while not (found := condition()):
        assert time.monotonic() < ends, "it did not come"
        time.sleep(0.05)
    return found
