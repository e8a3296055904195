"""Before exec: would the server's own interpreter import the patched modules from where the launcher put them?

The launcher loads this file from its own folder. It prepares RUN/attest, from which every process of the server attests
its patched functions, and asks the interpreter in the server's first line, with the flags there and the environment of
the server, where it would look for each patched module; asked.py answers. Nothing of vLLM is imported for
that. Standard library, Python 3.10+.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

ANSWER = "gemmaspec-origins:"  # as in asked.py
ANSWERS = {"prefix", "flags", "origins", "site", "plugins"}
ASKED = "asked.py"
MARKER = ".gemmaspec-overlay"  # as in launch.py: the next launcher takes such a folder off PYTHONPATH
MOST_S = 30.0  # an interpreter starts in milliseconds, on a cold disk in seconds
CARRIED = {  # files beside this one, and what they are called in RUN/attest
    "attest_site.py": "sitecustomize.py",
    "attest.py": "gemmaspec_attest.py",
    "attest_code.py": "gemmaspec_attest_code.py",
    "attest_sum.py": "gemmaspec_attest_sum.py",
}
LONG_SHEBANG = re.compile(rb"'''exec' (.+?) \"\$0\" \"\$@\"")  # what pip and uv write for a path of over 127 bytes
PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")  # the name of an interpreter


class Refused(Exception):
    """The server would not run the patched code, or cannot be asked: lines to log, and the exit code."""

    def __init__(self, code: int, *lines: str) -> None:
        super().__init__(*lines[:1])
        self.code = code
        self.lines = lines


@dataclass(frozen=True)
class Target:
    """A patched file as the server has to import it."""

    module: str
    file: str
    """Its path in the overlay, or in the package if there is no overlay."""
    sha256: str
    required: bool
    hunks: tuple[Mapping[str, Any], ...]
    text: str = ""  # of the patched file, its bytes as latin-1
    runs: bool = False  # whether a process has to import it; not one of a patch for one model runner


def refuse_beside(package: Path, targets: Sequence[Target]) -> None:
    """Raise Refused(5) for a compiled module or a package that goes before a patched .py of the same name."""
    for target in targets:
        inside = package.joinpath(*target.module.split(".")[1:])
        if target.file.endswith("/__init__.py"):
            continue
        places = [inside.with_name(inside.name + end) for end in EXTENSION_SUFFIXES]  # of this Python, not of others
        places += [inside / f"__init__{end}" for end in (".py", ".pyc", *EXTENSION_SUFFIXES)]
        found = [one for one in places if one.is_file()]
        if found:
            raise Refused(
                5,
                f"{found[0]} is imported in place of the patched {inside.name}.py, so the patch would not run",
                "vllm was not started",
                f"next: use a vllm without it, or remove the patch of {target.module} from the profile",
            )


def carry(run_dir: Path) -> Path:
    """Put what attests into RUN/attest and return that folder for PYTHONPATH. Raise Refused(4) for a missing file."""
    folder, here = run_dir / "attest", Path(__file__).absolute().parent
    folder.mkdir(mode=0o755)
    (folder / "processes").mkdir(mode=0o755)
    (folder / MARKER).touch()
    for source, name in CARRIED.items():
        try:
            (folder / name).write_bytes((here / source).read_bytes())
        except FileNotFoundError:
            why = f"{here / source} is missing, and a patched server needs it; render the stack again"
            raise Refused(4, why) from None
    return folder


def write_targets(
    folder: Path, targets: Sequence[Target], plugins: Sequence[Mapping[str, str]], *, headless: bool
) -> None:
    """Write down what each process has to attest; a headless machine has workers alone."""
    files = [{**vars(target), "hunks": list(target.hunks)} for target in targets]
    document = {"schema": 2, "leader": os.getpid(), "headless": headless, "files": files, "plugins": list(plugins)}
    (folder / "targets.json").write_text(json.dumps(document), encoding="utf-8")


def interpreter_of(program: str, arguments: Sequence[str], path: str) -> list[str] | None:
    """Return the interpreter and flags that a program's first line names; None for what is not a Python script.

    `path` is the PATH of the server. A Python that the command itself names has its flags in the arguments.
    """
    if PYTHON.fullmatch(os.path.basename(os.path.realpath(program))):
        return [program, *_flags(arguments)]
    try:
        with open(program, "rb") as file:
            head = file.read(4096)
    except OSError:
        return None
    first, _, rest = head.partition(b"\n")
    if not first.startswith(b"#!"):
        return None
    if found := LONG_SHEBANG.match(rest):
        words = shlex.split(os.fsdecode(found[1]))
    else:
        words = os.fsdecode(first[2:]).strip().split(None, 1)
    if words and os.path.basename(words[0]) == "env":
        words = shlex.split(" ".join(words[1:]))
        words = words[1:] if words[:1] in (["-S"], ["--split-string"]) else words
        words = [shutil.which(words[0], path=path) or words[0], *words[1:]] if words else []
    if not words or not PYTHON.fullmatch(os.path.basename(words[0])):
        return None
    return words if os.access(words[0], os.X_OK) else None


def _flags(arguments: Sequence[str]) -> Iterator[str]:
    """Yield Python's own flags before the module or script that it runs."""
    words = iter(arguments)
    for word in words:
        if not word.startswith("-") or word in ("-", "-m", "-c"):
            return
        yield word
        if word in ("-W", "-X"):
            yield next(words, "")


def ask(
    interpreter: Sequence[str],
    script: str,
    modules: Sequence[str],
    environment: Mapping[str, str],
    wait_s: float = MOST_S,
) -> dict[str, Any]:
    """Return what the server's interpreter answers (see asked.py). Raise Refused(4) if it gives no answer."""
    question = json.dumps({"script": script, "modules": list(modules)})
    shown = shlex.join(interpreter)
    try:
        done = subprocess.run(
            [*interpreter, str(Path(__file__).absolute().with_name(ASKED))],
            input=question.encode(), capture_output=True, env=dict(environment), timeout=wait_s, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"it gave no answer within {wait_s:.0f} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise Refused(4, *_no_answer(script, shown, why)) from None
    for line in reversed(done.stdout.decode("utf-8", "replace").splitlines()):
        if line.startswith(ANSWER):
            with contextlib.suppress(ValueError, RecursionError):
                found = json.loads(line.removeprefix(ANSWER))
                if isinstance(found, dict) and found.keys() >= ANSWERS:
                    return found
    last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it printed nothing"]
    raise Refused(4, *_no_answer(script, shown, f"exit code {done.returncode}: {last[0][:300]}"))


def _no_answer(script: str, shown: str, why: str) -> tuple[str, str]:
    return (
        f"cannot ask {shown}, which runs {script}, where it would import vllm from: {why}; vllm was not started",
        f"next: {shown} -c pass",
    )


def differences(
    found: Mapping[str, Any], targets: Sequence[Target], folder: Path, interpreter: Sequence[str], script: str
) -> Iterator[str]:
    """Yield why the server would not run the patched code; nothing if it would."""
    flags = found["flags"]
    ignores = [name for name in ("isolated", "ignore_environment") if flags.get(name)]
    shown = shlex.join(interpreter)
    for target in targets:
        seen = found["origins"].get(target.module, {})
        origin = seen.get("origin") or ""
        if not _same(origin, target.file):
            by = f", by the finder {seen['finder']}" if seen.get("finder") not in (None, "PathFinder") else ""
            yield f"{shown} would import {target.module} from {origin or 'nowhere'}{by}, not from {target.file}"
    if ignores:
        yield f"the first line of {script} makes Python ignore PYTHONPATH ({', '.join(ignores)}), which has the overlay"
    elif flags.get("no_site") or found["site"] != str(folder):
        other = "Python runs without site (-S)" if flags.get("no_site") else f"{found['site'] or 'nothing'} runs first"
        yield f"its processes would not attest their patched functions: {other}, not {folder}/sitecustomize.py"


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def allowed(plugin: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Return whether VLLM_PLUGINS lets vLLM load a plugin (vllm/plugins/__init__.py, every release)."""
    listed = environment.get("VLLM_PLUGINS")
    return listed is None or plugin["name"] in listed.split(",")
