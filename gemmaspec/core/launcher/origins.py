"""Before exec: what the server's own interpreter would import, and what the installed vLLM lacks.

The launcher loads this file from its own folder. It prepares RUN/attest, from which every process of the server attests
its patched functions, and asks the interpreter in the server's first line, with its flags and the server's environment,
where it would look for each module of a patch; asked.py answers, and imports nothing of vLLM. Pip installs what a plan
requires. Standard library, Python 3.10+.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    data: bytes
    """The patched file."""
    hunks: Sequence[Mapping[str, Any]]
    required: bool
    runs: bool
    """Whether a process has to import it; not one of a patch for one model runner."""


def prepared(
    run_dir: Path, package: Path, overlay: Path | None, results: Sequence[Any], changed: Mapping[str, bytes]
) -> Attestation | None:
    """Prepare what the server's interpreter is asked, and what its processes attest with, from the PatchResults.

    None if no patch is in and none is required. Where a required patch is superseded, applied or not needed, that is
    said of this package, so the server has to import it from here.
    """
    rows: dict[str, dict[str, Any]] = {}
    for result in (result for result in results if result.state in ("applies", "drifted", "applied")):
        variant = next(variant for variant in result.patch.variants if variant.name == result.variant)
        for edit, file in zip(variant.files, result.files, strict=True):
            data = changed.get(edit.path, file.before or b"")
            row = rows.setdefault(edit.path, {"data": data, "hunks": [], "required": False, "runs": False})
            row["hunks"] += [{"scope": hunk.function, "old": hunk.old, "new": hunk.new} for hunk in edit.hunks]
            row["required"] |= result.patch.required
            row["runs"] |= result.patch.required and result.patch.runner == "any"
    root = overlay or package.parent
    spoken = spoken_of(package, root, results)
    if not rows:
        if spoken:
            return Attestation((), None, spoken)
        return None
    if os.pathsep in str(run_dir):
        why = f"the run folder {run_dir} has a {os.pathsep} in its path, which separates entries of PYTHONPATH"
        raise Refused(2, why, "next: use another --run-dir; a stack's folder is below $GEMMASPEC_STATE")
    targets = [Target(module=module_of(path), file=str(root / path), **row) for path, row in rows.items()]
    refuse_beside(package, targets)
    return Attestation(targets, carry(run_dir), spoken)


def spoken_of(package: Path, root: Path, results: Sequence[Any]) -> dict[str, str]:
    """Return the modules that the words on required patches are about, with their files; empty without such a patch."""
    required = [result.patch for result in results if result.patch.required]
    if not required:
        return {}
    edits = [edit.path for patch in required for variant in patch.variants for edit in variant.files]
    rules = [rule.path for patch in required for rule in patch.superseded]
    there = [path for path in dict.fromkeys([*edits, *rules]) if (package.parent / path).is_file()]
    return {module_of(path): str(root / path) for path in ("vllm/__init__.py", *there)}


def module_of(path: str) -> str:
    """Return the module of a path such as vllm/v1/core/kv_cache_utils.py."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def refuse_beside(package: Path, targets: Sequence[Target]) -> None:
    """Raise Refused(5) for a compiled module or a package that goes before a patched .py of the same name."""
    for target in targets:
        inside = package.joinpath(*target.module.split(".")[1:])
        if target.file.endswith("/__init__.py"):
            continue
        places = [inside.with_name(inside.name + end) for end in EXTENSION_SUFFIXES]  # of this Python, not of others
        places += [inside / f"__init__{end}" for end in (".py", ".pyc", *EXTENSION_SUFFIXES)]
        beside = [place for place in places if place.is_file()]
        if beside:
            raise Refused(
                5,
                f"{beside[0]} is imported in place of the patched {inside.name}.py, so the patch would not run",
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


class Attestation:
    """What the server's processes have to attest, and the question to its interpreter before it starts."""

    def __init__(self, targets: Sequence[Target], folder: Path | None, spoken: Mapping[str, str]) -> None:
        self.targets = targets
        self.folder = folder
        """RUN/attest; None if no process has anything to attest."""
        self.files = {**spoken, **{target.module: target.file for target in targets}}
        self.required = {*spoken, *(target.module for target in targets if target.required)} - {"vllm"}

    def ask(
        self,
        program: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        drift: str,
        say: Callable[[str], None],
    ) -> dict[str, Any]:
        """Write down what each process has to attest, and return the report's row; `drift` is the plan's.

        Raise Refused(5) if the server would import something else, Refused(4) if it cannot be asked.
        """
        began = time.perf_counter()
        interpreter = interpreter_of(program, command[1:], environment.get("PATH", os.defpath))
        modules = list(self.files)
        # this Python is asked for plugins where the server's cannot be
        answer = ask(interpreter or [sys.executable], program, modules, environment)
        if interpreter is None:
            self.refuse_unasked(program, drift, say)
        elif wrong := list(differences(answer, self.files, self.folder, interpreter, program)):
            if self.targets:
                would = "the server would not run the patched code"
            else:
                would = "nothing was said of that vllm"
            raise Refused(
                5,
                *wrong,
                f"{would}: vllm was not started",
                f"next: head -1 {program}; {shlex.join(interpreter)} -c 'import sys; print(sys.path, sys.meta_path)'",
            )
        elif not _same(answer["prefix"], sys.prefix):
            say(f"WARNING: {program} runs in the Python of {answer['prefix']}, not of {sys.prefix}")
        plugins: list[dict[str, Any]] = answer["plugins"]
        for plugin in plugins:
            plugin["loaded"] = allowed(plugin, environment)
            if plugin["loaded"]:
                does = "runs in vllm's processes"
            else:
                does = "is kept out by VLLM_PLUGINS"
            say(f"plugin {plugin['name']} ({plugin['value']}, {plugin['distribution']}) {does}")
        if self.folder is not None:
            self._write(self.folder, plugins, headless="--headless" in command)  # it has workers alone
        took = round((time.perf_counter() - began) * 1000, 1)
        return {"modules": modules, "interpreter": interpreter, "asked_ms": took, "plugins": plugins}

    def refuse_unasked(self, program: str, drift: str, say: Callable[[str], None]) -> None:
        """Say that nobody knows what a program imports. Raise Refused(5) where a required patch may not drift."""
        what = f"{program} is not a Python script, so it cannot be asked where it would import vllm from"
        required = ", ".join(name for name in self.files if name in self.required)
        if required and drift == "refuse":
            why = f"the profile sets patches.drift: refuse, and a required patch is in: {required}"
            raise Refused(5, what, why, "next: start vllm by its Python script")
        say(f"WARNING: {what}; a required patch may not run: {required}" if required else what)

    def _write(self, folder: Path, plugins: Sequence[Mapping[str, Any]], *, headless: bool) -> None:
        files = [
            {
                **{name: getattr(target, name) for name in ("module", "file", "hunks", "required", "runs")},
                "sha256": hashlib.sha256(target.data).hexdigest(),
                "text": target.data.decode("latin-1"),
            }
            for target in self.targets
        ]
        document = {"schema": 2, "leader": os.getpid(), "headless": headless, "files": files, "plugins": plugins}
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
    if shebang := LONG_SHEBANG.match(rest):
        words = shlex.split(os.fsdecode(shebang[1]))
    else:
        words = os.fsdecode(first[2:]).strip().split(None, 1)
    if words and os.path.basename(words[0]) == "env":
        words = shlex.split(" ".join(words[1:]))
        if words[:1] in (["-S"], ["--split-string"]):
            words = words[1:]
        if words:
            words = [shutil.which(words[0], path=path) or words[0], *words[1:]]
        else:
            words = []
    if not words or not PYTHON.fullmatch(os.path.basename(words[0])):
        return None
    if os.access(words[0], os.X_OK):
        return words
    return None


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
    words = [*interpreter, str(Path(__file__).absolute().with_name(ASKED))]
    answer, why = _exchange(words, question, environment, ANSWER, wait_s)
    if answer.keys() >= ANSWERS:
        return answer
    raise Refused(4, *_no_answer(script, shlex.join(interpreter), why))


def _exchange(
    words: Sequence[str], question: str, environment: Mapping[str, str], marker: str, wait_s: float
) -> tuple[dict[str, Any], str]:
    """Return the last JSON object that a program prints after a marker, empty for none, and why there is none."""
    try:
        done = subprocess.run(words, input=question.encode("utf-8", "surrogatepass"), capture_output=True,
                              env=dict(environment), timeout=wait_s, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return {}, f"it gave no answer within {wait_s:.0f} s"
    except OSError as error:
        return {}, str(error)[:300]
    for line in reversed(done.stdout.decode("utf-8", "replace").splitlines()):
        with contextlib.suppress(ValueError, RecursionError):
            if line.startswith(marker):
                answer = json.loads(line.removeprefix(marker))
            else:
                answer = None
            if isinstance(answer, dict):
                return answer, "its answer is not complete"
    last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it printed nothing"]
    return {}, f"exit code {done.returncode}: {last[0][:300]}"


def _no_answer(script: str, shown: str, why: str) -> tuple[str, str]:
    return (
        f"cannot ask {shown}, which runs {script}, where it would import vllm from: {why}; vllm was not started",
        f"next: {shown} -c pass",
    )


def differences(
    answer: Mapping[str, Any],
    files: Mapping[str, str],
    folder: Path | None,
    interpreter: Sequence[str],
    script: str,
) -> Iterator[str]:
    """Yield why the server would not run the code that was decided on; nothing if it would.

    `files` are the modules with their files, `folder` is that of the processes' attestation.
    """
    flags = answer["flags"]
    ignores = [name for name in ("isolated", "ignore_environment") if flags.get(name)]
    shown = shlex.join(interpreter)
    for module, file in files.items():
        seen = answer["origins"].get(module, {})
        origin = seen.get("origin") or ""
        if not _same(origin, file):
            if seen.get("finder") not in (None, "PathFinder"):
                by = f", by the finder {seen['finder']}"
            else:
                by = ""
            yield f"{shown} would import {module} from {origin or 'nowhere'}{by}, not from {file}"
    if folder is None:
        return
    if ignores:
        yield f"the first line of {script} makes Python ignore PYTHONPATH ({', '.join(ignores)}), which has the overlay"
    elif flags.get("no_site") or answer["site"] != str(folder):
        if flags.get("no_site"):
            other = "Python runs without site (-S)"
        else:
            other = f"{answer['site'] or 'nothing'} runs first"
        yield f"its processes would not attest their patched functions: {other}, not {folder}/sitecustomize.py"


def _same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def allowed(plugin: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Return whether VLLM_PLUGINS lets vLLM load a plugin (vllm/plugins/__init__.py, every release)."""
    listed = environment.get("VLLM_PLUGINS")
    return listed is None or plugin["name"] in listed.split(",")


def install(wanted: Sequence[str], folder: Path, say: Callable[[str], None]) -> str:
    """Install what pip would change into a folder, completely or not at all; a second start waits."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder.parent / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return "cached"
        pins = _would_install(wanted)
        say(f"installing {', '.join(pins)} into {folder}")
        fresh = folder.with_name(folder.name + ".tmp")
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            _pip(wanted, "install", "--quiet", "--no-deps", "--target", str(fresh), *pins)
            fresh.replace(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return "installed"


def _would_install(wanted: Sequence[str]) -> list[str]:
    """Ask pip what has to change. Raise Refused(4) if that is nothing, or something that vLLM was built with."""
    answer = json.loads(_pip(wanted, "install", "--quiet", "--dry-run", "--report", "-", *wanted))
    pins = {entry["metadata"]["name"].lower(): entry["metadata"]["version"] for entry in answer["install"]}
    if not pins:
        raise Refused(4, f"{', '.join(wanted)} is missing, but pip has nothing to install")
    built_with = sorted({"torch", "vllm"} & set(pins))
    if built_with:
        raise Refused(4, f"{', '.join(wanted)} would replace {' and '.join(built_with)}; nothing was installed")
    return [f"{name}=={version}" for name, version in sorted(pins.items())]


def _pip(wanted: Sequence[str], *arguments: str) -> str:
    """Run this Python's pip with the user's settings. Raise Refused(4) with its last lines if it fails."""
    command = [sys.executable, "-I", "-m", "pip", *arguments, "--no-input", "--disable-pip-version-check"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, errors="replace", check=False)
    if done.returncode == 0:
        return done.stdout
    tail = [line for line in done.stderr.splitlines() if line.strip()][-5:]
    raise Refused(4, f"pip could not install {', '.join(wanted)}, which vllm needs; nothing was changed", *tail)
