"""Arguments and options that several commands share."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gemmaspec.core.errors import UsageError

if TYPE_CHECKING:
    from gemmaspec.run.engine.server import EngineName


TEXTS: Final = Path(__file__).with_name("options.json")
_TEXTS: Final = json.loads(TEXTS.read_text(encoding="utf-8"))
"""Option or argument, after its command where that is not the same everywhere → metavar and help, or the help alone."""


def option(*names: str, of: str = "", **settings: Any) -> Any:
    """Return an option with its texts from options.json; `of`: the command before its name there."""
    long_name = next(name for name in names if name.startswith("--"))
    text = _TEXTS[f"{of} {long_name}".strip()]
    if isinstance(text, list):
        metavar, said = text
    else:
        metavar, said = (None, text)
    return typer.Option(*names, **{"metavar": metavar, "help": said, **settings})


def argument(metavar: str, *, of: str = "", **settings: Any) -> Any:
    """Return an argument with its help from options.json."""
    return typer.Argument(metavar=metavar, help=_TEXTS[f"{of} {metavar}".strip()], show_default=False, **settings)


def engine_name(text: str | None) -> EngineName | None:
    """Return the engine that --engine names. Raises UsageError for another word."""
    from gemmaspec.core.profile.engines import ENGINES

    if text is None:
        return None
    for name in ENGINES:
        if name == text:
            return name
    raise UsageError(f"--engine must be {' or '.join(ENGINES)}, not {text!r}")


def whole_numbers(text: str | None, option: str, *, low: int, high: int) -> tuple[int, ...]:
    """Return the numbers of a list such as 1,4,8, each once, in the order given; () for no text."""
    if text is None:
        return ()
    numbers: dict[int, None] = {}
    for part in text.split(","):
        if not part.strip().isdecimal() or not low <= int(part.strip()[:12]) <= high:
            raise UsageError(
                f"{option} must be a list of whole numbers from {low} to {high}, such as 1,4,8; not {part!r}"
                f"{_meant(part)}"
            )
        numbers[int(part)] = None
    return tuple(numbers)


def _meant(part: str) -> str:
    """Return a range or a number in thousands as what is to be written."""
    if match := re.fullmatch(r"\s*(\d{1,3})\s*(?:-|\.\.|:)\s*(\d{1,3})\s*", part):
        return f"; write {','.join(map(str, range(int(match[1]), min(int(match[2]), int(match[1]) + 16) + 1)))}"
    if match := re.fullmatch(r"\s*(\d{1,4})[kK]\s*", part):
        return f"; write {int(match[1]) * 1024}"
    return ""


def host_names(text: str | None) -> tuple[str, ...]:
    """Return the names of --hosts in the order given; none without it. Raises UsageError for an empty name."""
    if text is None:
        return ()
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise UsageError(f"--hosts must be names of fleet.yaml, such as a,b; not {text!r}")
    return names


def complete_hosts(incomplete: str) -> list[str]:
    """Return the hosts of fleet.yaml that can come next in a list of names."""
    import contextlib

    from gemmaspec.core.errors import GemmaspecError
    from gemmaspec.run.kept.fleet import load_fleet

    before, comma, begun = incomplete.rpartition(",")
    with contextlib.suppress(GemmaspecError):
        names = [host.name for host in load_fleet().hosts if host.name not in before.split(",")]
        return [f"{before}{comma}{name}" for name in names if name.startswith(begun)]
    return []


def complete_machine(incomplete: str) -> list[str]:
    """Return the names of machines, and `here`."""
    from gemmaspec.core.profile.machines import MACHINES

    return [name for name in (*MACHINES, "here") if name.startswith(incomplete)]


def complete_release(incomplete: str) -> list[str]:
    """Return the releases of vLLM that are known."""
    from gemmaspec.core.releases.facts import releases

    return [release for release in releases() if release.startswith(incomplete)]


def complete_profile(incomplete: str) -> list[str]:
    """Return the names of profiles that begin with what was typed."""
    from gemmaspec.core.profile.find import profile_names

    return [name for name in profile_names() if name.startswith(incomplete)]


def complete_key(incomplete: str) -> list[str]:
    """Return keys of a profile, one level at a time: sections first, then what is in one of them."""
    from gemmaspec.core.profile.invalid import keys_at

    if "=" in incomplete:
        return []
    section, dot, _ = incomplete.rpartition(".")
    path = tuple(section.split(".")) if dot else ()
    shown = []
    for key in keys_at(path):
        inner = (*path, key)
        shown.append(".".join(inner) + ("." if any(keys_at(inner)) else "="))
    return [key for key in shown if key.startswith(incomplete)]


def complete_stack(incomplete: str) -> list[str]:
    """Return the names of stacks that were started on this machine."""
    from gemmaspec.core.files import state_dir

    folder = state_dir() / "stacks"
    names = sorted(record.parent.name for record in folder.glob("*/record.json"))
    return [name for name in names if name.startswith(incomplete)]


def complete_good(incomplete: str) -> list[str]:
    """Return the ids of known good stacks, newest first."""
    from gemmaspec.core.files import state_dir

    ids = (folder.name for folder in (state_dir() / "known-good").glob("*/[0-9]*"))
    return sorted((id_ for id_ in ids if id_.startswith(incomplete)), reverse=True)


def complete_patch(incomplete: str) -> list[str]:
    """Return the ids of patches that begin with what was typed."""
    from gemmaspec.core import data

    names: set[str] = set()
    for folder in data.patch_folders():
        names |= {file.parent.name for file in folder.glob("*/patch.yaml")}
    return sorted(name for name in names if name.startswith(incomplete))


_profile = partial(
    typer.Argument,
    help="Name of a profile, or path of a profile file.",
    autocompletion=complete_profile,
    show_default=False,
)
Profile = Annotated[str, _profile(metavar="PROFILE")]
OptionalProfile = Annotated[str | None, _profile(metavar="[PROFILE]")]
Prompts = Annotated[str | None, option("--prompts")]
_stack = partial(typer.Argument, autocompletion=complete_stack, show_default=False)
Stack = Annotated[str, _stack(metavar="NAME", help="Name of a server: its profile's.")]
OptionalStack = Annotated[str | None, _stack(metavar="[NAME]", help="Name of a server: its profile's.")]
Stacks = Annotated[list[str] | None, _stack(metavar="[NAME]...", help="Names of servers. [default: all]")]
Set = Annotated[list[str] | None, option("--set", autocompletion=complete_key)]
NoSpeedPatches = Annotated[bool, option("--no-speed-patches")]
NoSpec = Annotated[bool, option("--no-spec")]
Locked = Annotated[bool, option("--locked")]
Timeout = Annotated[float, option("--timeout", min=1)]
Json = Annotated[bool, option("--json")]
Explain = Annotated[bool, option("--explain")]
Engine = Annotated[str | None, option("--engine", autocompletion=lambda: ["docker", "process"])]

# of commands about patches
_patch = partial(typer.Argument, metavar="PATCH", autocompletion=complete_patch, show_default=False)
PatchId = Annotated[str, _patch(help="Id of a patch.")]
PatchIds = Annotated[list[str] | None, _patch(help="Ids of patches. [default: all]")]
PatchFolder = Annotated[Path | None, option("--patches")]
PatchFolders = Annotated[list[Path] | None, option("--patches", of="several")]
Releases = Annotated[list[str] | None, option("--release", of="several")]

DryRun = Annotated[bool, option("--dry-run")]
Yes = Annotated[bool, option("--yes", "-y")]
Namespace = Annotated[str | None, option("--namespace")]
OutFolder = Annotated[Path | None, option("--out", "-o")]
Release = Annotated[str | None, option("--release", autocompletion=complete_release)]
Machine = Annotated[str | None, option("--machine", autocompletion=complete_machine)]

# of commands that measure
Drafts = Annotated[str | None, option("--k")]
Context = Annotated[str | None, option("--context")]
Each = Annotated[int | None, option("--each", min=0)]
Replace = Annotated[bool, option("--replace")]
Concurrency = Annotated[str | None, option("--concurrency")]
Category = Annotated[str | None, option("--category")]
MaxTokens = Annotated[int, option("--max-tokens", min=8, max=1_000_000)]
IgnoreEos = Annotated[bool, option("--ignore-eos", hidden=True)]
Temperature = Annotated[float, option("--temperature", min=0, max=2)]
Sample = Annotated[bool, option("--sample", hidden=True)]
Repeats = Annotated[int, option("--repeats", min=0, max=10, hidden=True)]
AcceptAnyText = Annotated[bool, option("--accept-any-text", hidden=True)]
RequestTimeout = Annotated[float, option("--request-timeout", min=1, hidden=True)]


def overrides_of(set_: list[str] | None, *, no_speed_patches: bool) -> tuple[str, ...]:
    """Return the values of --set, with what --no-speed-patches stands for."""
    return (*(set_ or ()), *(("patches.speed=off",) if no_speed_patches else ()))


def given(**values: Any) -> dict[str, Any]:
    """Return the fields of a request that options give; what was not given is left to the record's defaults.

    Each name is a field's. Raises UsageError for a value that an option does not take.
    """
    return {name: _read(name, value) for name, value in values.items() if value is not None}


def _read(name: str, value: Any) -> Any:
    """Return the value of a field, of what its option was given."""
    from gemmaspec.core.rows import MAX_CONCURRENCY, MAX_CONTEXT, MAX_K

    lists = {
        "ks": ("--k", 0, MAX_K),
        "concurrencies": ("--concurrency", 1, MAX_CONCURRENCY),
        "loads": ("--concurrency", 1, MAX_CONCURRENCY),
        "contexts": ("--context", 1, MAX_CONTEXT),
    }
    if name in lists:
        option, low, high = lists[name]
        return whole_numbers(value, option, low=low, high=high)
    if name == "categories":
        if value:
            return tuple(part.strip() for part in value.split(","))
        return ()
    if name == "engine":
        return engine_name(value)
    if name == "hosts":
        return host_names(value)
    if isinstance(value, list):
        return tuple(value)
    return value
