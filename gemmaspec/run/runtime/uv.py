"""Run uv, show its progress, and turn its failures into one sentence each."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.redact import redact

_FULL_BYTES = 64 * 1024 * 1024
_PATIENCE_S = 20
_NOISE = (" + ", " - ", " ~ ", "Using ", "Creating virtual environment", "Activate with")
"""Lines of uv to skip: they list every package, or repeat the interpreter."""


_ADDRESS = re.compile(r"https?://[^\s`'\"()]+")
_NETWORK = re.compile(
    r"after \d+ retries|error sending request|response body|server error|timed out|dns error|connection reset"
)
"""Words of uv 0.13 about an address that did not answer, or not to the end; 401, 403 and 404 are answers."""
_LEFT = "The incomplete environment was removed. Packages that had arrived whole are kept in uv's cache."


@dataclass(frozen=True, kw_only=True)
class Uv:
    """uv for one build: the working folder, the settings, and the callback for progress."""

    folder: Path
    """Working folder; otherwise a pyproject.toml in the caller's folder would affect the resolution."""
    environment: Mapping[str, str]
    progress: Callable[[str], None]
    keep_open: tuple[int, ...] = ()
    """File descriptors that uv inherits, so that a lock is held until uv ends even if gemmaspec is killed."""

    def run(self, *arguments: str) -> None:
        """Run `uv <arguments>`.

        On a terminal uv draws its own progress bars; otherwise its lines go to `progress`. Raise EnvironmentMissing if
        uv
        fails. Ctrl-C ends uv first and is then raised again.
        """
        on_terminal = sys.stderr.isatty()
        with subprocess.Popen(
            [uv_binary(), *arguments],
            cwd=self.folder,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if on_terminal else subprocess.PIPE,
            text=True,
            pass_fds=self.keep_open,
        ) as process:
            try:
                last = _forward(process, self.progress)
                code = process.wait()
            except BaseException:
                _end(process)
                raise
        if code != 0:
            raise failure(arguments, last, self.folder)


def uv_binary() -> str:
    """Return the path of uv. Raise EnvironmentMissing if it is missing.

    The package is imported late, because only an installation needs it.
    """
    try:
        import uv

        return uv.find_uv_bin()
    except (ImportError, FileNotFoundError):
        if program := shutil.which("uv"):
            return program
    raise EnvironmentMissing("uv is missing, but it installs the packages of a runtime", hint="pip install uv")


def failure(arguments: Sequence[str], last_lines: Sequence[str], folder: Path) -> EnvironmentMissing:
    """Return the error for a failed uv, by what the user has to do about it."""
    text = "\n".join(last_lines)
    if "No space left on device" in text or shutil.disk_usage(folder).free < _FULL_BYTES:
        return EnvironmentMissing(
            f"no space left on the disk of {folder} while installing packages; the incomplete environment was removed",
            hint=f"df -h {folder}    # or set GEMMASPEC_STATE to a folder on a larger disk",
        )
    if (place := _ADDRESS.search(text)) and _NETWORK.search(text):
        address = redact(place.group())
        return EnvironmentMissing(
            f"uv could not read {address}:\n{text}\n{_LEFT}",
            hint=f"curl -I {shlex.quote(address)}    # once it answers, run the same command again",
        )
    reason = f":\n{text}" if text else ", see above"
    if "No solution found" in text or "unsatisfiable" in text:
        return EnvironmentMissing(
            f"uv cannot resolve the packages{reason}",
            hint="pip config list    # lists the package indexes; the profile's own bounds are under 'runtime:'",
        )
    return EnvironmentMissing(
        f"uv {' '.join(arguments[:2])} failed{reason}\n{_LEFT}",
        hint="pip config list    # lists the package indexes",
    )


def _forward(process: subprocess.Popen[str], progress: Callable[[str], None]) -> list[str]:
    last: deque[str] = deque(maxlen=15)
    for line in process.stderr or ():
        text = line.rstrip()
        last.append(text)
        if text.strip() and not text.startswith(_NOISE):
            progress(text.strip())
    return list(last)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
