"""Every error gemmaspec raises on purpose, with its exit code.

GemmaspecError                1  failed
├─ UsageError                 2  wrong command line
├─ ProfileError               2  a profile, or a value set on it, is not valid
├─ PatchError                 2  a patch folder or a diff is refused
├─ CheckpointError            2  a config.json or a safetensors header is refused
├─ DifferencesFound           3  --check found drift
├─ EnvironmentMissing         4  docker, GPU, model access, disk, port
├─ PatchConflict              5  a required patch does not fit this vLLM
├─ StartFailed                6  the server died, or answered wrongly
├─ TimedOut                   7  not ready within --timeout
└─ Interrupted              130  Ctrl-C

A message says what, where and why; `hint` is the next command to type.
"""

from __future__ import annotations


class GemmaspecError(Exception):
    """Base of all expected failures: one clear message, one exit code, maybe a hint."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(GemmaspecError):
    """The command line asks for something that does not exist or does not go together."""

    exit_code = 2


class ProfileError(GemmaspecError):
    """A profile is not valid; the message lists every finding, one per line, as file:line: text."""

    exit_code = 2


class PatchError(GemmaspecError):
    """A patch's metadata or diff is refused."""

    exit_code = 2


class CheckpointError(GemmaspecError):
    """A checkpoint's files are not what they should be; the message begins with the file."""

    exit_code = 2


class DifferencesFound(GemmaspecError):
    """Something on disk or running is not what would be rendered now."""

    exit_code = 3


class EnvironmentMissing(GemmaspecError):
    """What the start needs from outside is not there: docker, GPU, model, image, disk, port."""

    exit_code = 4


class PatchConflict(GemmaspecError):
    """A required patch does not fit the vLLM that would run."""

    exit_code = 5


class StartFailed(GemmaspecError):
    """The server died while starting, or its first answer was wrong."""

    exit_code = 6


class TimedOut(GemmaspecError):
    """The server was not ready in time; the message names the phase."""

    exit_code = 7


class Interrupted(GemmaspecError):
    """The user pressed Ctrl-C."""

    exit_code = 130
