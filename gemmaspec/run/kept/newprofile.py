"""`profile new`: a profile that extends another one, or one from what somebody serves with today."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemmaspec.core import data
from gemmaspec.core.checkpoint.published.shipped import draft_for
from gemmaspec.core.errors import ProfileError, UsageError
from gemmaspec.core.files import write_whole
from gemmaspec.core.profile.find import is_model, own_folder, profile_names, serving
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.machines import ANY_GPU, MACHINES, machine_with
from gemmaspec.core.profile.takeover import TOKENS, TakenOver
from gemmaspec.core.profile.takeover_compose import from_compose
from gemmaspec.core.profile.takeover_manifest import from_manifest, is_manifest
from gemmaspec.core.profile.takeover_running import from_running
from gemmaspec.core.profile.takeover_text import from_command
from gemmaspec.core.profile.takeover_unit import is_unit
from gemmaspec.core.releases.facts import newest
from gemmaspec.run.engine.configured import configured
from gemmaspec.run.kept.beside import compose_variables, reader
from gemmaspec.run.machine import nvidia
from gemmaspec.run.running.find import running

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_MOST: Final = 2**20
_CACHES: Final = ("huggingface", "compile")
_SHM_OF_GPUS: Final = "16gb"
_SHM_OF_CPUS: Final = "1gb"
"""Shared memory of a container, as the shipped profiles have it: a limit, and nothing that is set aside."""
Machine = Callable[[], str | None]
"""Returns the machine that a user names; None where nobody can be asked, or nobody knows it."""


def _unnamed() -> None:
    return None


_TEXT: Final = """\
extends: {parent}
name: {name}
summary: {summary}

# What differs from {parent} goes here. `gemmaspec profile show {name}` prints everything that it inherits, and
# `null` removes a value. An example:
#
# serve:
#   port: {port}
"""


@dataclass(frozen=True, kw_only=True)
class New:
    """A profile that was written."""

    file: Path
    left: tuple[str, ...] = ()
    """What of the source could not be taken over, each with what gemmaspec does instead."""
    decided: tuple[str, ...] = ()
    """What was chosen, or taken over in another form."""
    draft: str | None = None
    """A draft that the target has, and the profile does not use."""


def new_profile(name: str, *, parent: str) -> New:
    """Write a profile that extends `parent` into the user's own folder.

    Raises UsageError for a name that is invalid or taken, and for a parent that does not exist.
    """
    file = _new_file(name)
    loaded = load_profile(parent)
    known = profile_names()
    if loaded.file.stem not in known or loaded.file.parent not in (own_folder(), data.PROFILES):
        raise UsageError(f"{parent} is in neither your own nor the shipped profiles, and `extends` searches only those")
    profile = loaded.profile
    text = _TEXT.format(
        parent=profile.name, name=name, summary=_quoted(f"{profile.summary} (my own)"), port=profile.serve.port + 1
    )
    return _written(file, text)


def new_from_command(name: str, command: str, *, with_draft: bool = False, machine: Machine = _unnamed) -> New:
    """Write a profile that serves what a `vllm serve` or `docker run` command serves. Raises as new_profile.

    `machine` is called where neither the command nor nvidia-smi says which GPU serves. Raises ProfileError for values
    that a profile refuses; nothing is written then.
    """
    made = from_command(command, reader(Path.cwd()))
    return _taken_over(name, made, "a command line", folder=Path.cwd(), with_draft=with_draft, machine=machine)


def new_from_compose(
    name: str, source: Path, *, service: str | None = None, with_draft: bool = False, machine: Machine = _unnamed
) -> New:
    """Write a profile that serves what a Compose file serves, or a file of Kubernetes or systemd.

    `service` names one of several servers in it. Raises as new_from_command.
    """
    try:
        text = source.read_bytes()[: _MOST + 1]
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from None
    folder = source.absolute().parent
    shown = text.decode("utf-8", "replace")
    if is_manifest(shown):
        made = from_manifest(text, file=str(source), service=service, beside=reader(folder))
        return _taken_over(
            name, made, f"{source.name}, of Kubernetes", folder=folder, with_draft=with_draft, machine=machine
        )
    if is_unit(shown):
        made = from_command(shown, reader(folder))
        return _taken_over(name, made, f"{source.name}, a unit", folder=folder, with_draft=with_draft, machine=machine)
    merged, why = configured(source)
    made = from_compose(
        text,
        file=str(source),
        service=service,
        configured=merged,
        variables=compose_variables(folder),
        beside=reader(folder),
    )
    if why:
        made.leave(f"what `docker compose config` would add to {source.name}", f"it said: {why}")
    return _taken_over(
        name, made, f"{source.name}, a Compose file", folder=folder, with_draft=with_draft, machine=machine
    )


def new_from_running(name: str, asked: str, *, with_draft: bool = False, machine: Machine = _unnamed) -> New:
    """Write a profile that serves what a container or a process of this machine serves. Raises as new_from_command.

    `asked`: the container's name or id, or the pid of the process. Nothing of the server is changed.
    """
    found, folder = running(asked)
    made = from_running(found, reader(folder))
    return _taken_over(
        name, made, f"the {found.called}, which ran", folder=folder, with_draft=with_draft, machine=machine
    )


def _taken_over(name: str, made: TakenOver, source: str, *, folder: Path, with_draft: bool, machine: Machine) -> New:
    import yaml

    file = _new_file(name)
    _on_this_machine(made.content, folder)
    if "speculative" not in made.content:
        draft = draft_for(made.content["target"]["model"])
    else:
        draft = None
    if with_draft:
        if draft is None:
            raise _no_draft(made)
        made.content |= {"speculative": {"method": "mtp", "num_speculative_tokens": TOKENS}, "draft": {"model": draft}}
    served_on = _machine(made, machine)
    head: dict[str, Any] = {
        "schema": 1,
        "name": name,
        "summary": f"{made.content['target']['model']}, taken over from {source}",
        "machine": served_on,
        "image": _image(made, served_on),
    }
    _shared_memory(made, served_on)
    text = yaml.safe_dump({**head, **made.content}, sort_keys=False, allow_unicode=True, width=100)
    known = ", ".join(machine.name for machine in MACHINES.values() if machine.memory_gb)
    text = text.replace(f"machine: {ANY_GPU}\n", f"machine: {ANY_GPU}  # name yours: {known}\n", 1)
    left, decided = _lines(made.left), _lines(made.decided)
    comments = _comments("Not taken over:", left) + _comments("Decided:", decided)
    _refuse_invalid(f"{comments}{text}", name)
    _written(file, f"{comments}{text}")
    return New(file=file, left=left, decided=decided, draft=None if with_draft else draft)


def _refuse_invalid(text: str, name: str) -> None:
    """Raise ProfileError for a text that a profile refuses, before it is written where profiles are."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.yaml"
        file.write_text(text, encoding="utf-8")
        try:
            load_profile(str(file))
        except ProfileError as error:
            problem = re.sub(rf"^{re.escape(str(file))}:[0-9]+: ", "", error.message, flags=re.MULTILINE)
            why = f"nothing is written, because a profile refuses this:\n{problem}"
            raise ProfileError(why, hint="correct the command, and run it again") from None


def _on_this_machine(content: dict[str, Any], folder: Path) -> None:
    """Replace paths that begin in the folder of the command by whole ones: a profile lies in a folder of its own."""
    for section, keys in (("target", ("model",)), ("draft", ("model",)), ("chat", ("template",)), ("caches", _CACHES)):
        for key in keys:
            value = content.get(section, {}).get(key)
            if not isinstance(value, str):
                continue
            named = section in ("target", "draft") and len(value) < 256  # a longer name is no file, but an error
            is_folder = named and (folder / value / "config.json").is_file()
            if value.startswith(("./", "../")) or (is_folder and not value.startswith(("/", "~"))):
                content[section][key] = str((folder / value).resolve())


def _machine(made: TakenOver, asked: Machine) -> str:
    """Return the machine: the image's, else the one that nvidia-smi lists, else the one that `asked` returns."""
    if re.search(r"(?<![a-z])cpu(?![a-z])", str(made.content.get("image", ""))):
        made.decide("machine: cpu", "the image is one for CPUs")
        return "cpu"
    if any(name.startswith("VLLM_CPU_") for name in made.content.get("env", {})):
        made.decide("machine: cpu", "its variables are those of vLLM for CPUs")
        return "cpu"
    gpus = nvidia.gpus()
    if found := machine_with([gpu.name for gpu in gpus]):
        made.decide(f"machine: {found}", f"nvidia-smi lists {gpus[0].name}")
        return found
    if named := asked():
        made.decide(f"machine: {named}", "as you named it")
        return named
    made.decide(
        f"machine: {ANY_GPU}",
        "the command does not say which GPU; lint checks its limits, and fit its memory, once the file names it",
    )
    return ANY_GPU


def _image(made: TakenOver, machine: str) -> str:
    """Return the image: the command's, else the one of its release, else of the newest release.

    vLLM's own images are for GPUs; without one the image for CPUs is meant, or where it was not built, an environment.
    """
    image: str | None = made.content.pop("image", None)
    if image:
        made.decide(f"image: {image}", "as given")
        return image
    release = made.release or newest()
    if MACHINES[machine].gpus:
        image = f"vllm/vllm-openai:v{release}"
    else:
        image = f"gemmaspec/vllm-cpu:{release}"
    if made.release or not MACHINES[machine].gpus:
        made.content.setdefault("runtime", {})["vllm"] = release
    if made.release:
        why = "the release that the command installs"
    else:
        why = "the newest release that gemmaspec knows, as the command names none; name the one that you run today"
    if not MACHINES[machine].gpus:
        why += "; where this image was not built, up installs vLLM for CPUs instead"
    made.decide(f"image: {image}", why)
    return image


def _shared_memory(made: TakenOver, machine: str) -> None:
    """Give a container more shared memory than Docker does: without a container a server has the machine's."""
    container = made.content.setdefault("container", {})
    if "shm_size" in container or container.get("ipc") == "host":
        return
    container["shm_size"] = _SHM_OF_GPUS if MACHINES[machine].gpus else _SHM_OF_CPUS
    made.decide(f"container.shm_size: {container['shm_size']}", "vLLM may need 160 MiB, and Docker gives 64")


def _no_draft(made: TakenOver) -> UsageError:
    if "speculative" in made.content:
        return UsageError("--with-draft: the command drafts already; leave it out", hint="gemmaspec profile new --help")
    target = made.content["target"]["model"]
    return UsageError(
        f"--with-draft: no draft is known for {target} by its name; leave it out, and set draft.model in the profile",
        hint=f"gemmaspec inspect {shlex.quote(target)} --draft DRAFT    # whether a draft works with it",
    )


def _lines(notes: Iterable[str]) -> tuple[str, ...]:
    """Return each note once, on one line: it quotes what somebody else wrote."""
    shown = ("".join(char if char.isprintable() else " " for char in note) for note in notes)
    return tuple(dict.fromkeys(" ".join(note.split()) for note in shown))


def _comments(head: str, lines: Sequence[str]) -> str:
    if lines:
        return "\n".join([f"# {head}", *(f"#   {line}" for line in lines), "", ""])
    return ""


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def check_name(name: str) -> None:
    """Raise UsageError for what cannot be the name of a profile."""
    if not _NAME.fullmatch(name):
        near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:63]
        said = f"{name!r} is not a valid name; use lowercase letters, digits and hyphens"
        raise UsageError(f"{said}{f': {near}' if near else ''}", hint=serving(name) if is_model(name) else None)


def _new_file(name: str) -> Path:
    """Return the file of a new profile. Raises UsageError for a name that is invalid or taken."""
    check_name(name)
    known = profile_names()
    file = own_folder() / f"{name}.yaml"
    if name in known or file.exists():
        raise UsageError(
            f"profile {name} already exists: {known.get(name, file)}", hint=f"gemmaspec profile show {name}"
        )
    return file


def _written(file: Path, text: str) -> New:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(file, text, mode=0o600)
    return New(file=file)
