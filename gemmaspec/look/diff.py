"""`diff`: compare what runs with what would be rendered now."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from gemmaspec.check.use_cases.lint import stop_on_errors
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, UsageError
from gemmaspec.core.lock.document import NONE, Moved
from gemmaspec.core.profile.find import find_profile, profile_folders
from gemmaspec.core.profile.model import Serve
from gemmaspec.run.engine.identity import image_identity
from gemmaspec.run.engine.record import without_key
from gemmaspec.run.engine.server import Engine, EngineName, Runs, Server
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.fleet import hosts_of
from gemmaspec.run.kept.lockfile import lock_of, release_by
from gemmaspec.run.stack import folder as stack_files
from gemmaspec.run.stack.build import Stack
from gemmaspec.serve import lock
from gemmaspec.serve.observe import load_request
from gemmaspec.serve.prepare import prepare
from gemmaspec.serve.up import again


@dataclass(frozen=True, kw_only=True)
class Drift:
    """What a restart would change; all fields are empty if nothing would."""

    name: str
    engine: EngineName
    """Where it runs, and where a restart would start it."""
    files: str
    """A unified diff, from the running stack's files to the rendered ones."""
    command: str
    """The same for the command, one word per line."""
    image: Moved | None
    keys: tuple[str, ...] = ()
    """The profile's keys behind the command's differences: `serve.max_num_seqs: 2 → 3`."""

    @property
    def same(self) -> bool:
        """Whether what runs is what would be rendered."""
        return not (self.files or self.command or self.image)


def drift(profile: str, *, overrides: Sequence[str] = ()) -> Drift:
    """Compare the running stack of a profile with what a restart would start; `overrides` are added to its own.

    Raises UsageError if it was never started, GemmaspecError if it is not running, ProfileError where a restart would
    refuse the profile.
    """
    name = _name(profile)
    started = stacks.find(name)
    engine = stacks.engine_of(started)
    runs = engine.runs(started.server)
    if runs is None and (state := stacks.look(started, engine)).status == "unknown":
        raise EnvironmentMissing(f"cannot tell whether {name} runs: {state.detail}", hint=state.hint)
    if runs is None:
        raise GemmaspecError(
            f"{name} is not running, so there is nothing to compare with", hint=f"gemmaspec up {profile}"
        )
    request = again(name, timeout_s=0)
    asked = dataclasses.replace(request, overrides=(*request.overrides, *overrides))
    loaded = load_request(asked)
    locked = lock_of(loaded)
    stop_on_errors(loaded, lambda _: None, release=release_by(loaded.profile, locked))  # a restart would refuse it too
    if asked.locked:
        loaded = lock.as_locked(loaded, started.engine, locked)
    hosts = hosts_of(loaded, asked.hosts)
    server, stack, _ = prepare(loaded, engine=started.engine, remote=engine.remote, hosts=hosts)
    command = _command(engine, server, stack)
    files = stack_files.difference(stack, started.server.folder)
    return Drift(
        name=name,
        engine=started.engine,
        files=files,
        command=_difference(runs.command, command),
        keys=tuple(moved_keys(runs.command, command)),
        image=None if hosts else _image(runs, server),
    )


def _name(profile: str) -> str:
    """Return the stack's name, which is its profile's; the profile's file may be gone by now."""
    try:
        return find_profile(profile, profile_folders()).stem
    except UsageError:
        if profile in [started.server.name for started in stacks.started_stacks()]:
            return profile
        raise


def _command(engine: Engine, server: Server, stack: Stack) -> tuple[str, ...]:
    """Return the argv that would be started."""
    if server.nodes:
        file = server.nodes[0].compose_file
    else:
        file = "compose.yaml"
    if file not in stack.files:
        return without_key(engine.start_command(server))
    service = yaml.safe_load(stack.files[file])["services"]["vllm"]
    words = (str(word).replace("$$", "$") for word in (*service["entrypoint"], *service["command"]))
    return without_key(tuple(words))


def moved_keys(now: Sequence[str], then: Sequence[str]) -> Iterator[str]:
    """Yield each flag that two commands set differently, as the profile's key where it has one."""
    before, after = _flags(now), _flags(then)
    for flag in dict.fromkeys((*before, *after)):
        if before.get(flag) != after.get(flag):
            field = flag.removeprefix("--").replace("-", "_")
            if field in Serve.model_fields:
                name = f"serve.{field}"
            else:
                name = flag
            yield f"{name}: {before.get(flag, 'not set')} → {after.get(flag, 'not set')}"


def _flags(words: Sequence[str]) -> dict[str, str]:
    """Return the flags of a command with their values; `--no-x` is `--x` set to false."""
    flags: dict[str, str] = {}
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        if not word.startswith("--") or word == "--":
            continue
        flag, equals, value = word.partition("=")
        if not equals and following and not following.startswith("--"):
            value = following
        turned_off = flag.startswith("--no-") and not value
        if turned_off:
            flags[f"--{flag.removeprefix('--no-')}" if turned_off else flag] = "false"
        else:
            flags[f"--{flag.removeprefix('--no-')}" if turned_off else flag] = value or "true"
    return flags


def _difference(now: Sequence[str], then: Sequence[str]) -> str:
    lines = difflib.unified_diff(now, then, fromfile="running", tofile="rendered", lineterm="", n=2)
    return "".join(f"{line}\n" for line in lines)


def _image(runs: Runs, server: Server) -> Moved | None:
    if not (runs.image and server.image):
        return None
    identity = image_identity(server.image)
    now = identity.id if identity else NONE
    if now != runs.image:
        return Moved("image", runs.image, now)
    return None
