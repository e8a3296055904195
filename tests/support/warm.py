"""Runs commands of gemmaspec in children of a process that has imported what they use: half the processor time of each."""

from __future__ import annotations

import functools
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.real import Done

ROOT = Path(__file__).parent.parent.parent

HARNESS = """\
import contextlib, gc, json, os, re, sys, tempfile
import huggingface_hub.file_download, huggingface_hub.hf_api, jinja2, prometheus_client.parser, pydantic.dataclasses
import typer._adapters, typer._click.decorators
import gemmaspec.cli.down, gemmaspec.cli.pull, gemmaspec.cli.status, gemmaspec.cli.up
import gemmaspec.cli.text.replicas, gemmaspec.cli.text.stack
import gemmaspec.core.checkpoint.published.shipped, gemmaspec.look.group_status, gemmaspec.run.engine.process
import gemmaspec.run.models.open, gemmaspec.serve.doctor, gemmaspec.serve.down, gemmaspec.serve.observe
import gemmaspec.serve.pull, gemmaspec.serve.replicas, gemmaspec.serve.up
from gemmaspec.cli.app import run
from gemmaspec.core.patching.patch import load_patches
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.releases.facts import facts_for


def build(model):
    for kind in model.__subclasses__():
        kind.model_rebuild()
        build(kind)


# Builds the checks of a profile and of records, and reads the patches that ship and a release's facts, as each child
# would do again.
load_profile("tiny-cpu")
build(pydantic.BaseModel)
load_patches()
facts_for("0.32.0")
READ = re.compile("HF_|HUGGING|(HOME|XDG_CACHE_HOME|TRANSFORMERS_OFFLINE|DISABLE_TELEMETRY|DO_NOT_TRACK|NO_COLOR)$")


def of_hub(environment):
    return {name: value for name, value in environment.items() if READ.match(name)}


# Reads its environment when it is imported, so a child with another one imports it again; what it needs is there.
hub = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "huggingface_hub"}
imported = of_hub(os.environ)
for name in hub:
    del sys.modules[name]

gc.freeze()
gc.set_threshold(200_000)  # as __main__.py
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
            if of_hub(os.environ) == imported:
                sys.modules.update(hub)
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
        if not ready:
            end_harness()  # it waits for them, and the next test needs one that listens
        assert ready, f"{commands} did not end within {timeout} s"
        return [Done(*one) for one in json.loads(self.process.stdout.readline())]


@functools.cache
def harness() -> Harness:
    """The running one, for all files that a worker runs. What a test sets while it starts does not reach it."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("GEMMASPEC_", "HF_"))}
    command = [sys.executable, "-c", HARNESS]
    return Harness(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=plain)
    )


def end_harness() -> None:
    """End it, if there is one."""
    if harness.cache_info().currsize:
        with harness().process as process:
            process.kill()
        harness.cache_clear()
