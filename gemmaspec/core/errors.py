"""Every error that gemmaspec raises deliberately, with its exit code.

GemmaspecError                1  failed
├─ UsageError                 2  wrong command line
├─ ProfileError               2  a profile, or a value set for it, is invalid
├─ PatchError                 2  a patch folder or a diff is invalid
├─ CheckpointError            2  a config.json or a safetensors header is invalid
├─ DifferencesFound           3  something differs from what is rendered, pinned or kept
├─ EnvironmentMissing         4  docker, GPU, model access, disk space or port
├─ PatchConflict              5  a required patch does not fit this vLLM, or is not what runs
├─ StartFailed                6  the server died, or gave a wrong answer
├─ TimedOut                   7  not ready within --timeout
└─ Interrupted              130  Ctrl-C

A message says what failed, where and why; `hint` is the next command to type.
"""

from __future__ import annotations

from typing import Self


class GemmaspecError(Exception):
    """Base of all expected failures: a message, an exit code and an optional hint."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint
        self.exit_code = exit_code or self.exit_code

    def amended(self, message: str, *, hint: str | None = None) -> Self:
        """Return an error like this one with this message, and with another hint if one is given."""
        error = type(self).__new__(type(self), message)
        vars(error).update(vars(self), message=message, hint=hint or self.hint)
        return error


class UsageError(GemmaspecError):
    """The command line names something that does not exist, or combines options that exclude each other."""

    exit_code = 2


class ProfileError(GemmaspecError):
    """A profile is invalid; the message lists every problem on its own line, as file:line: text."""

    exit_code = 2


class PatchError(GemmaspecError):
    """A patch's metadata or diff is invalid."""

    exit_code = 2


class CheckpointError(GemmaspecError):
    """A checkpoint's file is invalid; the message begins with its name."""

    exit_code = 2


class DifferencesFound(GemmaspecError):
    """Something on disk, or a running server, differs from what would be rendered now."""

    exit_code = 3


class EnvironmentMissing(GemmaspecError):
    """Something that a start needs is missing: docker, GPU, model, image, disk space, port."""

    exit_code = 4


class PatchConflict(GemmaspecError):
    """A required patch does not fit the vLLM that would run."""

    exit_code = 5


class StartFailed(GemmaspecError):
    """The server died during the start, or its first answer was wrong."""

    exit_code = 6


class TimedOut(GemmaspecError):
    """The server was not ready in time; the message names the phase."""

    exit_code = 7


class Interrupted(GemmaspecError):
    """The user pressed Ctrl-C."""

    exit_code = 130
