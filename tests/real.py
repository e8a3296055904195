"""Driving the installed command against real servers, as a user would.

Runtimes, the tiny pair and stacks live in .tools/state of the checkout, so that a second run of the suite
finds them; nothing of the user's own state is touched.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

STATE = Path(__file__).parent.parent / ".tools" / "state"
PORT = 8377
H1, H2, H3A = "kv-spec-uniform-valueerror", "kv-sharing-uniform-specs", "draft-text-only"


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment, with the suite's own state folder."""
    return {**os.environ, "GEMMASPEC_STATE": str(STATE), **(extra or {})}


def gemmaspec(*arguments: str, env: Mapping[str, str] | None = None, timeout: float = 400) -> Done:
    """Run `gemmaspec …` to its end."""
    command = [sys.executable, "-m", "gemmaspec", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(env), timeout=timeout, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def up(engine: str, *arguments: str, env: Mapping[str, str] | None = None) -> Done:
    """`gemmaspec up tiny-cpu` on one engine, on the suite's own port."""
    return gemmaspec("up", "tiny-cpu", "--engine", engine, "--json", "--set", f"serve.port={PORT}", *arguments, env=env)


def patches(*ids: str) -> tuple[str, ...]:
    """`--set` for exactly these required patches."""
    return ("--set", f"patches.required=[{', '.join(ids)}]")


@cache
def docker_answers() -> bool:
    """Whether a Docker engine with Compose v2 is here."""
    if not shutil.which("docker"):
        return False
    asked = (["docker", "info"], ["docker", "compose", "version"])
    return all(subprocess.run(command, capture_output=True, check=False).returncode == 0 for command in asked)


def image_there(image: str) -> bool:
    """Whether an image is in the local engine."""
    return subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode == 0


def interrupt_when(command: list[str], said: str) -> Done:
    """Start `command`, press Ctrl-C once its stderr holds `said`, and wait for its end."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    )
    assert process.stderr
    seen = []
    with process:
        for line in process.stderr:
            seen.append(line)
            if said in line:
                process.send_signal(signal.SIGINT)
                break
        try:
            out, rest = process.communicate(timeout=120)
        finally:
            process.kill()
    return Done(process.returncode, out, "".join(seen) + rest)
