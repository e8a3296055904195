"""Runs inside vLLM: attests, in each of its processes, that the patched functions are the ones that are bound.

The launcher puts this file into RUN/attest as `gemmaspec_attest`; attest_site.py begins it when a process looks for
vLLM. It looks twice: when vLLM has loaded its plugins, and when the process is about to serve. Both are calls of
functions of vLLM and of uvicorn, the doors of attest_sum.py; no thread runs. It looks at modules that were imported,
and imports none.

Each process writes what it found to RUN/attest/processes, and one that is about to serve sums up in RUN/attested.json:
that is what the launcher's host reads. A difference in a required patch ends the server with exit code 5. Standard
library, Python 3.10+.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gemmaspec_attest_code as code_of  # type: ignore[import-not-found]  # attest_code.py, under that name
import gemmaspec_attest_sum as summing  # type: ignore[import-not-found]  # attest_sum.py, under that name

CODE = 5

_begun: Attestor | None = None


def begin(folder: str) -> Attestor | None:
    """Begin to attest in this process and in those that it forks; None if there is nothing to attest."""
    global _begun
    if _begun is None:
        with contextlib.suppress(OSError, ValueError, KeyError):
            _begun = Attestor(folder)
    return _begun


class Attestor:
    """What one process knows of the patched functions in it."""

    def __init__(self, folder: str) -> None:
        """Read what is to be attested, and follow the modules that it takes. Raise OSError or ValueError."""
        self.folder = folder
        with open(os.path.join(folder, "targets.json"), encoding="utf-8") as file:
            self.targets: dict[str, Any] = json.load(file)
        self.files = {file["module"]: file for file in self.targets["files"]}
        self.modules: dict[str, list[Any]] = {name: [] for name in self.files}  # as imported, whatever came after
        self.expected: dict[str, code_of.Expected | str] = {}
        self.roles: list[str] = []
        self.cost_s = 0.0
        self.told: set[str] = set()
        for name in {*summing.DOORS, *self.files} & set(sys.modules):
            self.imported(sys.modules[name])
        os.register_at_fork(after_in_child=lambda: self.roles.clear())
        with contextlib.suppress(FileExistsError):  # the first process: the server's exit code is its own
            os.close(os.open(os.path.join(folder, "first"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            atexit.register(self.end_as_told, os.getpid())

    def find_spec(self, finder: Any, name: str, path: Any, target: Any) -> Any:
        """Return what the other finders say of a module that is followed; its import then ends here."""
        if name not in summing.DOORS and name not in self.files:
            return None
        finds = [getattr(one, "find_spec", None) for one in sys.meta_path if one is not finder]
        specs = (find(name, path, target) for find in finds if find)
        spec: Any = next((one for one in specs if one is not None), None)
        with contextlib.suppress(AttributeError, TypeError):  # none, or a loader that is no object of its own
            spec.loader.exec_module = functools.partial(self._exec, spec.loader)
        return spec

    def _exec(self, loader: Any, module: Any) -> None:
        del loader.exec_module
        loader.exec_module(module)
        self.imported(module)

    def imported(self, module: Any) -> None:
        """Remember a module as it was imported, and look whenever somebody goes through its door."""
        if all(module is not one for one in self.modules.get(module.__name__, [module])):
            self.modules[module.__name__].append(module)
        if module.__name__ in summing.DOORS:
            name, after, role = summing.DOORS[module.__name__]
            classes = (one for one in list(vars(module).values()) if isinstance(one, type))
            for holder in [module, *(one for one in classes if one.__module__ == module.__name__)]:
                if isinstance(found := vars(holder).get(name), types.FunctionType):
                    setattr(holder, name, self._door(found, role, after=after))

    def _door(self, function: Any, role: str, *, after: bool) -> Callable[..., Any]:
        @functools.wraps(function)
        def gemmaspec_looks(*arguments: Any, **named: Any) -> Any:
            if not after:
                self.look(role)
            result = function(*arguments, **named)
            if after:
                self.look(role)
            return result

        return gemmaspec_looks

    def look(self, role: str) -> None:
        """Look at every patched function, write down what was found, and end the server if it has to end.

        What does not look writes nothing, and what is not written is not attested.
        """
        try:
            began = time.thread_time()
            self.roles += [role] if role and role not in self.roles else []
            rows = [row for file in self.files.values() for row in self._rows(file)]
            self.cost_s += time.thread_time() - began
            self._write(rows)
            wrong = [row for row in rows if row["state"] == "different"]
            for row in wrong:
                self._say_wrong(row)
            if any(row["required"] for row in wrong):
                self._end()
            if role:
                summing.sum_up(self.folder, self.targets)
        except Exception as error:
            say(f"cannot attest in process {os.getpid()}: {type(error).__name__}: {error}")

    def _rows(self, file: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield a row for each patched name of a file, one for the file if it has none or was not imported."""
        name = file["module"]
        row = {"module": name, "function": "", "state": "not imported", "required": file["required"]}
        there = sys.modules.get(name)
        modules = [*self.modules[name], *([there] if there is not None and there not in self.modules[name] else [])]
        # an import that has not ended has not bound its names
        modules = [one for one in modules if not getattr(getattr(one, "__spec__", None), "_initializing", False)]
        if not modules:
            yield row
            return
        if parent := _other_in_parent(name):
            yield {**row, "state": "different", "found": f"{name.rpartition('.')[0]} has {parent} in its place"}
        expected = self._expected(file)
        for module in modules:
            origin = code_of.file_of(module)
            if not _same_file(origin, file["file"]):
                where = origin or f"a {type(module).__module__}.{type(module).__qualname__} without a file"
                yield {**row, "state": "different", "found": f"it was imported from {where}, not from {file['file']}"}
            elif isinstance(expected, str):
                yield {**row, "state": "different", "found": expected}
            else:
                names = list(code_of.names(module, expected))
                yield from ({**row, "function": one, **self._row(found)} for one, found in names)
                if not names:
                    yield {**row, "state": "attested"}

    def _row(self, found: code_of.Difference) -> dict[str, Any]:
        if found.what:
            return {"state": "different", "found": f"it is now {found.what}{self._whose(found.found)}"}
        return {"state": "attested", **({"wrapped": [found.through]} if found.through else {})}

    def _whose(self, found: Any) -> str:
        """Return which general plugin brought an object, where its module says so."""
        top = str(getattr(found, "__module__", "")).partition(".")[0]
        for plugin in self.targets.get("plugins", ()):
            if top and top == str(plugin["value"]).partition(":")[0].partition(".")[0]:
                return f", of the plugin {plugin['name']} ({plugin['value']})"
        return ""

    def _expected(self, file: Mapping[str, Any]) -> code_of.Expected | str:
        """Return what the file's names have to be, or why that is not known."""
        name = file["module"]
        if name not in self.expected:
            try:
                self.expected[name] = code_of.expected(file)
            except (OSError, SyntaxError, ValueError) as error:
                return f"{file['file']}: {error}"
        return self.expected[name]

    def _write(self, rows: list[dict[str, Any]]) -> None:
        pid = os.getpid()
        word = {"schema": 2, "pid": pid, "since": summing.born(pid), "title": summing.title(pid), "roles": self.roles}
        word |= {"cost_ms": round(self.cost_s * 1000, 2), "python": sys.version.split()[0], "rows": rows}
        summing.write(os.path.join(self.folder, "processes", f"{pid}.json"), word)

    def _say_wrong(self, row: Mapping[str, Any]) -> None:
        what = ".".join(part for part in (row["module"], row["function"]) if part)
        line = f"process {os.getpid()} ({summing.title(os.getpid())}): {what} is not the patched one: {row['found']}"
        if line not in self.told:
            self.told.add(line)
            say(f"not attested: {line}")

    def _end(self) -> None:
        """End this process and those below it. vLLM ends when one of its processes does, and then says 5 itself."""
        with contextlib.suppress(OSError):
            summing.write(os.path.join(self.folder, "different"), {})
        say("vllm was stopped, because a required patch is not what runs in all of its processes")
        say("next: remove the plugin or module that replaces it, or the patch from the profile")
        for pid in summing.below(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        os._exit(CODE)

    def end_as_told(self, first: int) -> None:
        """Give the server's first process the exit code 5 if another one ended because of a difference."""
        if os.getpid() == first and os.path.exists(os.path.join(self.folder, "different")):
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(CODE)


def _other_in_parent(name: str) -> str:
    """Return what a package on the way to a module holds under its name in place of it; "" if it is the module."""
    parts = name.split(".")
    for count in range(1, len(parts)):
        parent, module = (sys.modules.get(".".join(parts[:end])) for end in (count, count + 1))
        if isinstance(parent, types.ModuleType):
            held = vars(parent).get(parts[count], module)
        else:
            held = module
        # a package may name a function or class as its module
        own = isinstance(held, (types.FunctionType, type)) and str(held.__module__).startswith(".".join(parts[:count]))
        if held is not module and module is not None and not own:
            return str(code_of.described(held))
    return ""


def _same_file(file: str, other: str) -> bool:
    """Return whether two paths are one file."""
    try:
        return file == other or os.path.samefile(file, other)
    except OSError:
        return False


def say(line: str) -> None:
    """Print one line as the launcher does."""
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
    with contextlib.suppress(OSError):
        os.write(2, f"gemmaspec: {text}\n".encode("utf-8", "replace"))
