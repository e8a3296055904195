"""Run a probe on many texts of one module of vLLM: one process imports what that module does not touch, and a fork runs each text.

It stands in for a probe (tests/support/judging.py hands it over), so it runs alone, in the environment of
`gemmaspec patch prove`: the standard library only. Each fix costs a fifth of what a tree of its own would, whose every
module is imported again.

No module is imported early that imports the changed one, however indirectly: while it is kept out, an import that needs it
fails, and so does that of every module above. A fork imports the changed module and all of those itself, from the same
overlay.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

LIMIT_S = 300  # for one text


class NeedsTheFix(BaseException):
    """An import of the changed module, or of one that needs it."""


class KeptOut(importlib.abc.MetaPathFinder):
    """Lets nobody import the changed module, and knows whether somebody tried: vLLM may go on without what failed."""

    def __init__(self, module: str) -> None:
        self._modules = {module}
        self.was_asked_for = False

    def add_importers(self, error: NeedsTheFix) -> None:
        """Keep out the modules whose import ended with it, which would run into it again."""
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        self._modules.update(one.f_globals["__name__"] for one in frames if one.f_code.co_name == "<module>")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Raise NeedsTheFix for what is kept out."""
        if fullname in self._modules:
            self.was_asked_for = True
            raise NeedsTheFix
        return None


def judged(job: dict[str, Any]) -> list[tuple[str, str]]:
    """Return for each text of a module whether the probe finds the bug (open, closed, failed), and what it saw.

    `file` is the module's in the overlay, and holds the first text. What is imported besides vLLM is there already.
    """
    module, file, probe = job["module"], Path(job["file"]), job["run"]
    sys.dont_write_bytecode = True  # two texts of one size and one second would share what is compiled
    imported = in_fork(lambda: imported_by(probe))
    for name in in_fork(lambda: independent(imported, module)):
        importlib.import_module(name)
    assert module not in sys.modules, f"{module} was imported before its texts"
    found = []
    for text in job["texts"]:
        file.write_text(text, encoding="utf-8")
        found.append(tuple(in_fork(lambda: run(probe))))
    return found


def in_fork(work: Callable[[], Any]) -> Any:
    """Return what a child process made of it, by way of JSON; [failed, why] for one that died."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(LIMIT_S)
        try:
            with os.fdopen(write, "w") as pipe:
                json.dump(work(), pipe)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else ["failed", f"the process of the probe died with wait status {status}"]


def imported_by(probe: str) -> list[str]:
    """Return the modules of vLLM that a probe imports, on the text that is there, in their order."""
    known = set(sys.modules)
    run(probe)
    return [name for name in sys.modules if name not in known and name.partition(".")[0] == "vllm"]


def independent(names: Sequence[str], module: str) -> list[str]:
    """Return those modules that import without asking for one of them."""
    kept_out = KeptOut(module)
    sys.meta_path.insert(0, kept_out)
    found = []
    for name in names:
        kept_out.was_asked_for = False
        try:
            importlib.import_module(name)
        except NeedsTheFix as error:
            kept_out.add_importers(error)
        except Exception:  # what vLLM made of it
            continue
        finally:
            forget_orphans()
        if not kept_out.was_asked_for:
            found.append(name)
    return found


def forget_orphans() -> None:
    """Forget modules whose package failed: who imports one of them again imports the package first, and with it the changed module."""
    for name in [*sys.modules]:
        package = name.rpartition(".")[0]
        if name.startswith("vllm.") and package not in sys.modules:
            del sys.modules[name]


def run(probe: str) -> tuple[str, str]:
    """Run a probe; as run_probes.py does, and with the same words."""
    found: dict[str, str] = RUNNER["one"]("probe", probe, None)
    return found["state"], found["seen"]


RUNNER: dict[str, Any] = {}


def probe() -> tuple[bool, str]:
    """Judge what the job beside this file asks; what it finds is in its words."""
    job = json.loads(Path(__file__).with_name("job.json").read_text())
    RUNNER.update(runpy.run_path(job["runner"]))
    return False, json.dumps(judged(job))
