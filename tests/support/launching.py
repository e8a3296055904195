"""A Python environment with a FAKE vLLM, and plans for it: what the launcher's tests run on.

The fake package refuses to be imported by anything but the fake `vllm` program beside its Python. That program
says on stdout, as JSON, what it was given and which files its imports came from. The real package is covered by
tests/real/test_servers.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmaspec.core import data
from gemmaspec.core.launcher import launch
from tests.support.placed import known_of

INIT = """\
import sys
if not sys.argv[0].endswith("bin/vllm"):
    raise SystemExit("vllm was imported before it was started")
"""
CORE = """\
class Planner:
    def plan(self, specs):
        try:
            return merge(specs)
        except AssertionError:
            return False

    def other(self, specs):
        try:
            return merge(specs)
        except AssertionError:
            return False


def value():
    return "stock"
"""


def tree_of_function(text: str, scope: str) -> str:
    """The digest of a function, as a rule of `superseded` has it."""
    return launch.tree_digest(launch.definitions(launch.Source(text.encode()).tree, scope))


PROGRAM = """\
import json, os, sys
import vllm.v1.core, vllm.v1.plain
fd_of_lock = [fd for fd in os.listdir("/proc/self/fd") if os.path.realpath("/proc/self/fd/" + fd).endswith("/lock")]
print(json.dumps({
    "argv": sys.argv[1:], "core": vllm.v1.core.__file__, "plain": vllm.v1.plain.__file__,
    "value": vllm.v1.core.value(), "path": sys.path, "pythonpath": os.environ.get("PYTHONPATH"),
    "lock": len(fd_of_lock),
}))
if "wait" in sys.argv:
    sys.stdin.read()
"""
HUNK = {"scope": "value", "line": 16, "old": ['    return "stock"'], "new": ['    return "patched"  # by us']}


@dataclass(frozen=True, kw_only=True)
class Done:
    """How a launch ended."""

    code: int
    out: str
    err: str
    report: dict[str, Any]

    @property
    def said(self) -> dict[str, Any]:
        """What the fake program printed."""
        answer: dict[str, Any] = json.loads(self.out)
        return answer

    @property
    def states(self) -> dict[str, str]:
        """Patch by patch."""
        return {row["patch"]: row["state"] for row in self.report["patches"]}


@dataclass(frozen=True, kw_only=True)
class Place:
    """An environment with the fake package, and folders for one stack."""

    python: Path
    site: Path
    run_dir: Path
    cache_dir: Path
    plan_file: Path

    @property
    def package(self) -> Path:
        """The fake vllm/."""
        return self.site / "vllm"

    def argv(self, *command: str, flags: Sequence[str] = ("-I",), options: Sequence[str] = ()) -> list[str]:
        """The launcher's command line."""
        folders = [
            "--plan",
            self.plan_file,
            "--run-dir",
            self.run_dir,
            "--cache-dir",
            self.cache_dir,
            *options,
        ]
        words = [self.python, *flags, data.LAUNCHER, *folders, "--", *(command or ("vllm", "serve", "model"))]
        return [str(word) for word in words]

    def launch(self, plan: Mapping[str, Any] | str | bytes, *command: str, **more: Any) -> Done:
        """Write the plan, run the launcher to its end, read the report if there is one."""
        options = {key: more.pop(key) for key in ("flags", "options") if key in more}
        self.write_plan(plan)
        environment = {**os.environ, **more.pop("env", {})}
        done = self.ended(self.argv(*command, **options), environment, **more)
        assert "Traceback" not in done.stderr, done.stderr
        assert all(line.startswith("gemmaspec: ") for line in done.stderr.splitlines()), done.stderr
        file = self.run_dir / "report.json"
        report = json.loads(file.read_text()) if file.exists() else {}
        return Done(code=done.returncode, out=done.stdout, err=done.stderr, report=report)

    def ended(self, argv: list[str], env: Mapping[str, str], **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a command line of the launcher to its end."""
        return subprocess.run(argv, capture_output=True, text=True, env=env, check=False, **more)

    def write_plan(self, plan: Mapping[str, Any] | str | bytes) -> None:
        """A plan object as JSON; text and bytes as they are."""
        if isinstance(plan, Mapping):
            plan = json.dumps(plan)
        self.plan_file.write_bytes(plan.encode() if isinstance(plan, str) else plan)

    def overlay(self) -> dict[str, str]:
        """Every entry of the overlay: a link's target, a file's sha256, "folder"."""
        return tree_of(self.run_dir / "overlay")


FORKS = """\
import importlib.util, json, os, sys
spec = importlib.util.spec_from_file_location("launch", sys.argv[1])
launch = sys.modules["launch"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(launch)
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(asked["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(os.open(asked["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.environ.clear()
        os.environ.update(asked["env"])
        sys.argv = asked["argv"]
        sys.exit(launch.main(sys.argv[1:]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs the launcher in children of one interpreter of the environment, which has compiled it."""


@dataclass(frozen=True, kw_only=True)
class ForkingPlace(Place):
    """A place whose launches are forks: for many of them that end early, a fifth of the processor time."""

    forks: subprocess.Popen[str]

    def ended(self, argv: list[str], env: Mapping[str, str], **more: Any) -> subprocess.CompletedProcess[str]:
        assert not more
        assert argv[1:3] == ["-I", str(data.LAUNCHER)]
        assert self.forks.stdin
        assert self.forks.stdout
        out, err = (self.plan_file.with_name(name) for name in ("out", "err"))
        asked = {"argv": argv[2:], "env": dict(env), "out": str(out), "err": str(err)}
        self.forks.stdin.write(json.dumps(asked) + "\n")
        self.forks.stdin.flush()
        code = int(self.forks.stdout.readline())
        return subprocess.CompletedProcess(argv, code, out.read_text(), err.read_text())


@contextlib.contextmanager
def forking(place: Place) -> Iterator[ForkingPlace]:
    """The place with the interpreter that forks."""
    command = [place.python, "-I", "-c", FORKS, data.LAUNCHER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as forks:
        yield ForkingPlace(**vars(place), forks=forks)
        forks.kill()


def make_place(root: Path, *, version: str = "0.32.0") -> Place:
    """A new environment in `root`: Python without pip, the fake package, the fake program."""
    venv.create(root / "venv", with_pip=False)
    minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
    place = Place(
        python=root / "venv/bin/python",
        site=root / "venv/lib" / minor / "site-packages",
        run_dir=root / "run",
        cache_dir=root / "cache",
        plan_file=root / "plan.json",
    )
    write_package(place.package, version=version)
    program = root / "venv/bin/vllm"
    program.write_text(f"#!{place.python}\n{PROGRAM}")
    program.chmod(0o755)
    return place


def write_package(package: Path, *, version: str = "0.32.0") -> None:
    """The fake package itself."""
    files = {
        "__init__.py": INIT,
        "_version.py": f"raise SystemExit('read me, do not run me')\n__version__ = version = {version!r}\n",
        "py.typed": "",
        "v1/__init__.py": "",
        "v1/core.py": CORE,
        "v1/plain.py": "A = 1\n",
        "v1/deep/__init__.py": "",
        "v1/deep/down.py": CORE,
        "csrc/kernel.so": "not really",
    }
    for path, text in files.items():
        file = package / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def patch_of(name: str = "one", *hunks: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A patch of the fake package; by default one that changes value() in vllm/v1/core.py."""
    files = more.pop("files", [{"path": "vllm/v1/core.py", "hunks": list(hunks) or [HUNK]}])
    variants = more.pop("variants", None) or [variant_of("all", ">=0.19.0", files)]
    return {
        "id": name, "title": f"patch {name}", "required": True, "runner": "any", "superseded": [],
        "variants": variants, **more,
    }  # fmt: skip


def variant_of(name: str, specifier: str, files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A variant; its sha256 is that of nothing, the launcher does not look at it."""
    placed = [
        {"known": known_of(file["hunks"], CORE), **file} if file["path"] == "vllm/v1/core.py" else file
        for file in files
    ]
    return {
        "name": name,
        "specifier": specifier,
        "sha256": hashlib.sha256(b"").hexdigest(),
        "files": placed,
    }


def plan_of(*patches: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A plan with the right sha256."""
    plan = {
        "schema": 1, "profile": "test", "gemmaspec": "0.1.0", "requires": [], "patches": list(patches or [patch_of()]),
        **more,
    }  # fmt: skip
    return {**plan, "sha256": launch.plan_digest(plan)}


def tree_of(folder: Path) -> dict[str, str]:
    """Every entry below a folder: a link's target, a file's sha256, "folder"."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = f"-> {path.readlink()}"
        elif path.is_file():
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[str(path.relative_to(folder))] = "folder"
    return found
