"""The profile that a command takes, and whether it is one that the command works on."""

from __future__ import annotations

from collections.abc import Sequence

from gemmaspec.core.errors import GemmaspecError, UsageError
from gemmaspec.core.profile.find import is_path, profile_names
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.run.kept import stacks


def load_for(command: str, typed: str, *, overrides: Sequence[str] = (), no_spec: bool = False) -> Loaded:
    """Return the profile that a command takes. Raises UsageError for a replica's name, and what load_profile raises."""
    try:
        return load_profile(typed, overrides=overrides, no_spec=no_spec)
    except GemmaspecError:
        _refuse_replica(command, typed)
        raise


def _refuse_replica(command: str, typed: str) -> None:
    """Raise UsageError for the name of a replica."""
    if is_path(typed) or typed in profile_names():
        return
    started = stacks.read_stack(typed)
    if started and started.replica is not None:
        name = started.options.profile
        raise UsageError(
            f"{typed} is a replica of {name}, and {command} takes a profile", hint=f"gemmaspec {command} {name}"
        )


def need_one_server(typed: str, loaded: Loaded, command: str, *, url: bool = False) -> None:
    """Raise UsageError for a profile with replicas, where a command starts or measures one server.

    With `url`, the command takes the address of a server that runs.
    """
    count, name = loaded.profile.replicas, loaded.profile.name
    if count > 1:
        raise UsageError(
            f"{name} has {count} replicas, and {command} works on one server",
            hint=_way_to_one(f"gemmaspec {command} {typed}", name, url=url),
        )


def _way_to_one(command: str, name: str, *, url: bool) -> str:
    """Return the command for one server of a profile with replicas: with `url` one that runs, else a new one."""
    for replica in stacks.started_replicas(name) if url else ():
        if stacks.look(replica).status == "running":
            return f"{command} --url {replica.server.base_url}/v1    # {replica.server.name} as it runs"
    return f"{command} --set replicas=1 --set router=    # starts one server"
