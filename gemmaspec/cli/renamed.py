"""Options that had another name before: the old name works for one version, with a note."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gemmaspec.cli import output

RENAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "fit": {"--for": "--release", "--context": "--cached"},
    "profile lint": {"--for": "--release", "--all": "--shipped"},
    "patch rebase": {"--to": "--release", "--from": "--since"},
    "patch prove": {"--all": "--all-releases"},
    "patch verify": {"--running": "--server"},
    "rollback": {"--to": "--stack"},
    "doctor": {"--hosts": "--fleet"},
    "tune": {"--resume": "--continue", "--rounds": "--stages"},
    "smoke": {"--timeout": "--run-timeout"},
    "bench": {"--patches": "--speed-patches"},
    "gc": {"--prompts": "--data-sets"},
    "status": {"-n": "--namespace"},
    "render": {"-n": "--namespace"},
}
"""Command, without `gemmaspec` → old name of an option → its name."""


def with_new_names(command: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the names of today, and print a note for each old one."""
    names = RENAMED.get(command, {})
    end = arguments.index("--") if "--" in arguments else len(arguments)
    found = []
    for argument in arguments[:end]:
        option, equals, value = argument.partition("=")
        new = names.get(option)
        if new:
            output.progress(f"note: {option} of gemmaspec {command} is called {new} now; the old name works until 0.4")
        found.append(f"{new}{equals}{value}" if new else argument)
    return [*found, *arguments[end:]]
