"""Runs commands of gemmaspec in children of a process that has imported what they use: half the processor time of each."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.real import Done

HARNESS = """\
import contextlib, json, os, sys, tempfile
import huggingface_hub.file_download, huggingface_hub.hf_api, jinja2, typer._adapters
import gemmaspec.cli.up, gemmaspec.serve.up, gemmaspec.serve.down, gemmaspec.look.status, gemmaspec.cli.text.stack
import gemmaspec.serve.observe, gemmaspec.run.engine.process, gemmaspec.serve.pull, gemmaspec.serve.doctor
from gemmaspec.cli.app import run
from gemmaspec.core.profile.load import load_profile

load_profile("tiny-cpu")  # builds the checks of a profile, which each child would build again
for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
    del sys.modules[name]  # reads its environment when it is imported, so each child imports it; what it needs is there

for line in sys.stdin:
    asked = json.loads(line)
    gate, opened = os.pipe()
    files, children = [], []
    for command in asked["commands"]:
        out, err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        child = os.fork()
        if not child:
            os.close(opened)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            os.environ.clear()
            os.environ.update(asked["env"])
            os.read(gate, 1)
            code = 70
            with contextlib.suppress(BaseException):
                code = run(command)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        files.append((out, err))
        children.append(child)
    os.close(opened)
    os.close(gate)
    done = []
    for child, (out, err) in zip(children, files):
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        done.append([code, out.read(), err.read()])
    print(json.dumps(done), flush=True)
"""
"""Runs commands, several at the same moment, in children of a process that has imported everything that they use."""


@dataclass(frozen=True)
class Harness:
    """The process whose children the commands are."""

    process: subprocess.Popen[str]

    def race(self, *commands: Sequence[str], env: Mapping[str, str], timeout: float = 300) -> list[Done]:
        """Run several commands at the same moment. Fails when they have not ended after `timeout` seconds."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps({"commands": commands, "env": dict(env)}) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        assert ready, f"{commands} did not end within {timeout} s"
        return [Done(*one) for one in json.loads(self.process.stdout.readline())]


@contextlib.contextmanager
def warm_harness() -> Iterator[Harness]:
    """A running harness."""
    command = [sys.executable, "-c", HARNESS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Harness(process)
        finally:
            process.kill()
