"""What Docker holds of a container: how it was made, as options of `docker run`, and the process that serves in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from gemmaspec.core.errors import EnvironmentMissing, UsageError
from gemmaspec.core.profile.takeover_running import Container, Running
from gemmaspec.run.engine import endpoint
from gemmaspec.run.engine.lines import clean
from gemmaspec.run.running import processes

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container as Found

_DEFAULT_SHM: Final = 64 * 2**20
_PLAIN_NETWORKS: Final = ("default", "bridge", "none", "")
_SERVICE: Final = "com.docker.compose.service"
"""The label in which Compose writes the service of a container."""
_MOST_CHANGES: Final = 200_000
"""Changed files that are looked at: an environment that was installed at the start has some ten thousand."""
_SHOWN_CHANGES: Final = 40


def container(name: str) -> Running | None:
    """Return how a container was started, by its name or id, or by the name of its service in Compose.

    None if there is none. Raises EnvironmentMissing if Docker does not answer, and UsageError for a service that
    several containers run.
    """
    from docker.errors import APIError, NotFound

    with endpoint.client() as client:
        try:
            return _running(client, client.containers.get(name))
        except NotFound:
            found = client.containers.list(filters={"label": f"{_SERVICE}={name}"}, ignore_removed=True)
            if len(found) > 1:
                called = ", ".join(str(one.name) for one in found)
                raise UsageError(
                    f"{len(found)} containers run a service {name!r}: {called}", hint="name one of them"
                ) from None
            if found:
                return _running(client, found[0])
            return None
        except APIError as error:
            raise EnvironmentMissing(
                f"docker does not describe the container {name!r:.80}: {clean(str(error.explanation))}",
                hint="docker ps",
            ) from None


def names() -> list[str]:
    """Return the containers that run. Raises EnvironmentMissing if Docker does not answer."""
    with endpoint.client() as client:
        return [str(found.name) for found in client.containers.list(ignore_removed=True)]


def _running(client: docker.DockerClient, found: Found) -> Running:
    """Return a container's settings with the words of the process that serves in it, or of its own command."""
    attributes: dict[str, Any] = found.attrs
    config = attributes["Config"]
    of_image, moved = _image(client, attributes)
    words = tuple(str(word) for word in (*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())))
    given = _pairs(config.get("Env"))
    if endpoint.find().remote:
        server = None
    else:
        server = _server(str(attributes["Id"]))
    if server is not None:
        words = processes.argv_of(server)
        given |= _exported(server, given)
    inherited = _pairs(of_image.get("Env"))
    own = {name: value for name, value in given.items() if inherited.get(name) != value}
    container = Container(
        image=_image_name(client, config, attributes),
        options=tuple(_options(attributes, of_image, words)),
        mounts=tuple(_mounts(attributes)),
        moved=moved,
        changed=_changed(found),
    )
    return Running(
        called=f"container {found.name}", argv=words, exact=server is not None, environment=own, container=container
    )


def _server(container_id: str) -> int | None:
    """Return the process of this machine that serves in a container; None where its processes cannot be seen."""
    for pid in processes.all_serving():
        if processes.container_of(pid) == container_id:
            return pid
    return None


def _exported(server: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return what a start script of the container set besides, where this user may read it."""
    try:
        environment = processes.environment_of(server)
    except EnvironmentMissing:
        return {}
    of_the_shell = ("PWD", "OLDPWD", "SHLVL", "_", "HOME", "HOSTNAME", "PATH", "TERM")
    return {name: value for name, value in environment.items() if name not in of_the_shell and given.get(name) != value}


def _image(client: docker.DockerClient, attributes: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return the settings of a container's image, and whether the name means another image today."""
    from docker.errors import APIError, ImageNotFound

    own_id = str(attributes["Image"])
    try:
        settings: Mapping[str, Any] = client.images.get(own_id).attrs.get("Config") or {}
    except (ImageNotFound, APIError):
        settings = {}
    try:
        named = str(client.images.get(str(attributes["Config"]["Image"])).attrs["Id"])
    except (ImageNotFound, APIError):
        named = own_id
    return settings, named != own_id


def _image_name(client: docker.DockerClient, config: Mapping[str, Any], attributes: Mapping[str, Any]) -> str:
    """Return the name of a container's image, also where the container was made from an id. Raises UsageError."""
    from docker.errors import APIError, ImageNotFound

    given = str(config.get("Image") or "")
    is_id = given.startswith("sha256:") or str(attributes["Image"]).removeprefix("sha256:").startswith(given)
    if given and not is_id:
        return given
    try:
        image = client.images.get(str(attributes["Image"])).attrs
    except (ImageNotFound, APIError):
        image = {}
    for name in (*(image.get("RepoTags") or ()), *(image.get("RepoDigests") or ())):
        return str(name)
    raise UsageError(
        f"the image of this container has no name, only the id {given[:19]}", hint=f"docker tag {given[:19]} NAME:TAG"
    )


def _options(
    attributes: Mapping[str, Any], of_image: Mapping[str, Any], words: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """Yield the options of `docker run` that differ from Docker's own choice and from the image's."""
    config, host = attributes["Config"], attributes["HostConfig"]
    yield from (("-p", published) for published in _ports(attributes, words))
    yield from (("--gpus", asked) for asked in _gpus(host))
    if config.get("User") and config["User"] != of_image.get("User"):
        yield "--user", str(config["User"])
    if host.get("IpcMode") not in (None, "", "private", "shareable"):
        yield "--ipc", str(host["IpcMode"])
    if host.get("ShmSize") not in (None, 0, _DEFAULT_SHM) and host.get("IpcMode") != "host":
        yield "--shm-size", f"{host['ShmSize'] // 2**20}m"
    restart = host.get("RestartPolicy") or {}
    if restart.get("Name") not in (None, "", "no"):
        count = restart.get("MaximumRetryCount")
        yield "--restart", f"{restart['Name']}:{count}" if count else str(restart["Name"])
    if config.get("StopTimeout"):
        yield "--stop-timeout", str(config["StopTimeout"])
    if host.get("ReadonlyRootfs"):
        yield "--read-only", ""
    network = str(host.get("NetworkMode") or "")
    if network not in _PLAIN_NETWORKS and not network.endswith("_default"):
        yield "--network", network
    yield from _without_a_key(host)


def _without_a_key(host: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the settings that a profile has no key for, so that they are named."""
    if host.get("Privileged"):
        yield "--privileged", ""
    for option, key in (("--cap-add", "CapAdd"), ("--security-opt", "SecurityOpt"), ("--add-host", "ExtraHosts")):
        if host.get(key):
            yield option, ",".join(map(str, host[key]))
    if host.get("Devices"):
        yield "--device", ",".join(str(device.get("PathOnHost")) for device in host["Devices"])
    if host.get("Ulimits"):
        yield "--ulimit", ",".join(str(limit.get("Name")) for limit in host["Ulimits"])
    if host.get("Memory"):
        yield "--memory", str(host["Memory"])


def _ports(attributes: Mapping[str, Any], words: tuple[str, ...]) -> Iterator[str]:
    """Yield HOST:CONTAINER of each published port, that of the server first."""
    asked = attributes["HostConfig"].get("PortBindings") or {}
    taken = (attributes.get("NetworkSettings") or {}).get("Ports") or {}
    own = _port_of(words)
    rows = sorted(asked.items(), key=lambda row: row[0].partition("/")[0] != own)
    for inside, bindings in rows:
        for index, binding in enumerate(bindings or ()):
            actual = (taken.get(inside) or [{}])[: index + 1][-1]
            port = binding.get("HostPort") or actual.get("HostPort") or ""
            address = binding.get("HostIp") or ""
            yield f"{address}:{port}:{inside.partition('/')[0]}" if address else f"{port}:{inside.partition('/')[0]}"


def _port_of(words: tuple[str, ...]) -> str:
    """Return the port that a server listens on in its container."""
    for index, word in enumerate(words):
        if word == "--port" and index + 1 < len(words):
            return words[index + 1]
        if word.startswith("--port="):
            return word.partition("=")[2]
    return "8000"


def _gpus(host: Mapping[str, Any]) -> Iterator[str]:
    for request in host.get("DeviceRequests") or ():
        if request.get("DeviceIDs"):
            yield f"device={','.join(map(str, request['DeviceIDs']))}"
        elif any("gpu" in names for names in request.get("Capabilities") or ()):
            yield "all" if request.get("Count") in (-1, None) else str(request["Count"])


def _mounts(attributes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for one in attributes.get("Mounts") or ():
        if one.get("Type") == "bind":
            yield str(one["Source"]), str(one["Destination"])
        elif one.get("Type") == "volume":
            yield str(one["Name"]), str(one["Destination"])


def _changed(found: Found) -> tuple[str, ...]:
    """Return the files that matter among those that were changed in a container: vLLM's own, and installed packages."""
    from docker.errors import APIError

    try:
        rows = (found.diff() or [])[:_MOST_CHANGES]
    except APIError:
        return ()  # the daemon cannot compare: nothing is known, and nothing is claimed
    removed = 2
    paths = (clean(str(row["Path"])) for row in rows if row.get("Kind") != removed)
    kept = (path for path in paths if path.endswith(".dist-info") or _is_source_of_vllm(path))
    return tuple(path for path, _ in zip(kept, range(_SHOWN_CHANGES), strict=False))


def _is_source_of_vllm(path: str) -> bool:
    return "/vllm/" in path and PurePosixPath(path).suffix in (".py", ".json", ".jinja", ".so")


def _pairs(entries: list[str] | None) -> dict[str, str]:
    return dict(entry.partition("=")[::2] for entry in entries or ())
