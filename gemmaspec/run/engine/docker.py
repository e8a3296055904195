"""The docker engine: Compose starts and stops a stack, the docker SDK inspects it."""

from __future__ import annotations

import contextlib
import io
import shutil
import struct
import tarfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.models.containers import Container

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, StartFailed
from gemmaspec.core.files import read_regular
from gemmaspec.core.fleet.agree import HostFacts, ImageFacts
from gemmaspec.core.state_id import make_state_id
from gemmaspec.core.waiting import WAITS
from gemmaspec.run.engine import compose, endpoint, port, record, volumes
from gemmaspec.run.engine.attested import with_attested
from gemmaspec.run.engine.container import has_nvidia, log_start, moment, publishes, state_of
from gemmaspec.run.engine.framed import framed
from gemmaspec.run.engine.image import ensure_image
from gemmaspec.run.engine.lines import clean, lines
from gemmaspec.run.engine.report import MAX_REPORT, parse_report
from gemmaspec.run.engine.server import EngineName, Node, Runs, Server, State
from gemmaspec.run.stack.build import STACK_FILES
from gemmaspec.run.stack.paths import IN_CONTAINER
from gemmaspec.run.stack.serve import SERVICE as WATCH

REPORT: Final = "/run/gemmaspec/report.json"
ATTESTED: Final = "/run/gemmaspec/attested.json"
"""The launcher's report in the container: on a tmpfs, which exec can read but `docker cp` cannot."""
_READINGS: Final = 10
"""On a busy machine a daemon loses what a command prints before the daemon listens: 44 of 649 times with Docker 28.2.2
and a load of 7. What is not whole is read again."""
_AT_ONCE: Final = 64
"""Files that one command in a container reads."""
_TOOLKIT_HOOK: Final = "nvidia-container-runtime-hook"


class DockerEngine:
    """Runs a stack with Docker Compose, on this machine or on that of the docker context."""

    name: EngineName = "docker"

    def __init__(self, node: Node | None = None) -> None:
        """Use the daemon of a host of fleet.yaml, or else the one that the environment chooses."""
        self._node = node

    @cached_property
    def endpoint(self) -> endpoint.DockerEndpoint:
        """The daemon to use. Raise EnvironmentMissing for an unknown docker context."""
        if self._node:
            return endpoint.of_host(self._node.host, self._node.docker)
        return endpoint.find()

    @cached_property
    def _client(self) -> docker.DockerClient:
        return endpoint.connect(self.endpoint)

    def close(self) -> None:
        """Close the connections to the daemon; a later call opens them again."""
        if client := self.__dict__.pop("_client", None):
            client.close()

    @property
    def remote(self) -> bool:
        """Whether the daemon is on another machine (ssh://, tcp://), which cannot mount folders of this one."""
        return self.endpoint.remote

    def ping(self) -> str:
        """Return the daemon's version. Raise EnvironmentMissing with the reason if it does not answer."""
        with _answering(self.endpoint):
            return str(self._client.version()["Version"])

    def facts(self, host: str) -> HostFacts:
        """Return what must agree with the other hosts of a server. Raise EnvironmentMissing if it does not answer."""
        with _answering(self.endpoint):
            version = str(self._client.version()["Version"])
            before = time.time()
            info = self._client.info()
            here = (before + time.time()) / 2
        return HostFacts(
            host=host,
            docker=version,
            # Machines that were copied from one disk may have one ID.
            daemon=clean(f"{info.get('ID', '')} on {info.get('Name', '')}"),
            architecture=str(info.get("Architecture", "")),
            ahead_s=moment(str(info["SystemTime"])) - here,
        )

    def image_facts(self, host: str, image: str) -> ImageFacts | None:
        """Return which image a name refers to there, if any. Raise EnvironmentMissing if docker does not answer."""
        with _answering(self.endpoint):
            try:
                attributes = self._client.images.get(image).attrs
            except ImageNotFound:
                return None
        digests = (str(entry).rpartition("@")[2] for entry in attributes.get("RepoDigests") or ())
        return ImageFacts(host=host, id=str(attributes["Id"]), digests=frozenset(digests))

    def data_root(self) -> Path | None:
        """Return the daemon's folder of images; None if it is on another machine or not readable."""
        with _answering(self.endpoint):
            root = Path(str(self._client.info().get("DockerRootDir", "")))
        if root.is_absolute() and not self.remote and root.exists():
            return root
        return None

    def preflight(self, server: Server, *, port_is_free: bool = False) -> None:
        """Raise EnvironmentMissing if the server could not start. Pull a missing image."""
        compose.ensure_docker_cli()
        self.ping()
        compose.ensure_compose_v2()
        with _answering(self.endpoint):
            if server.gpus:
                self.ensure_nvidia()
            self._ensure_ours(server)
            if not port_is_free:
                self.ensure_port(server)
        if server.image:
            with _explained(self.endpoint):  # a pull takes its time, and says so itself
                ensure_image(self._client, server.image, self.endpoint.environment())

    def start_command(self, server: Server) -> tuple[str, ...]:
        """Return `docker compose … up` as `start` runs it; `create` if files are copied before the container starts."""
        return compose.args_of(server, "create" if server.copied else "up")

    def start(self, server: Server) -> None:
        """Start the container in the background. Raise EnvironmentMissing or StartFailed."""
        try:
            if server.copied:
                self.create(server)
                self.start_created(server)
            else:
                self._ensure_ours(server)
                self._make_volumes(server)
                compose.act(server, "up", self.endpoint.environment())
        except BaseException:  # also Ctrl-C, because Compose may have created or started the container
            with contextlib.suppress(GemmaspecError):
                compose.stop(server, self.endpoint.environment())
            raise

    def start_watch(self, server: Server) -> bool:
        """Start the server's watch if it should run and has ended; return whether it did. Raise as `start`."""
        with _answering(self.endpoint):
            watch = self._container(server, WATCH)
        if not server.watched or server.copied or (watch and watch.status in ("running", "restarting")):
            return False
        compose.act(server, "watch", self.endpoint.environment())
        return True

    def create(self, server: Server) -> None:
        """Create the container, and copy the stack's files into its volume. Raise as `start`; stop nothing."""
        self._ensure_ours(server)
        self._make_volumes(server)
        compose.act(server, "create", self.endpoint.environment())
        with _answering(self.endpoint):
            container = self._container(server)
            if container is None:
                raise StartFailed(f"docker compose created no container for {server.name}")
            container.put_archive(IN_CONTAINER, stack_archive(server.folder))

    def start_created(self, server: Server) -> None:
        """Start the container that `create` made. Raise as `start`; stop nothing."""
        compose.act(server, "start", self.endpoint.environment())

    def ensure_answers(self, server: Server) -> None:
        """Raise StartFailed unless the container runs and publishes the port, which docker gives to only one."""
        with _answering(self.endpoint):
            container = self._container(server)
        if container is None or container.status != "running":
            raise StartFailed(
                f"the container of {server.name} no longer exists, and another server answers on {server.port}"
            )
        if not publishes(container.attrs, bind=server.bind, port=server.port):
            raise StartFailed(f"the container of {server.name} does not publish port {server.port}")

    def stop(self, server: Server) -> bool:
        """Run `docker compose down`, which keeps volumes; return True if the server or its watch was running."""
        self._ensure_ours(server)
        with _answering(self.endpoint):
            label: dict[str, str | list[str] | bool] = {"label": f"com.docker.compose.project={server.project}"}
            was = bool(self._client.containers.list(filters=label, ignore_removed=True))  # those that `docker ps` lists
        compose.stop(server, self.endpoint.environment())
        return was

    def state(self, server: Server) -> State:
        """Return the container's state, read from the daemon. Raise EnvironmentMissing if it does not answer."""
        with _answering(self.endpoint):
            container = self._container(server)
            if container:
                return state_of(container.attrs)
            return State(status="absent")

    def runs(self, server: Server) -> Runs | None:
        """Return the container's command and image."""
        with _answering(self.endpoint):
            container = self._container(server)
            if container is None or not state_of(container.attrs).lives:
                return None
            command = (container.attrs["Path"], *container.attrs["Args"])
            return Runs(command=record.without_key(command), image=str(container.attrs["Image"]))

    def logs(self, server: Server, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Yield clean lines of the container since its last start; with `follow`, until it stops."""
        with _answering(self.endpoint):
            container = self._container(server)
        if container is None:
            return
        with _explained(self.endpoint):
            lines = self._log_lines(container, follow=follow, tail=tail)
            # One line of docker's may be several here (a progress bar), so count the last ones again.
            yield from lines if follow or tail is None else deque(lines, maxlen=tail)

    def report(self, server: Server) -> dict[str, Any] | None:
        """Return the launcher's report, read inside the running container; None if it does not exist (yet).

        Raise GemmaspecError if it is not a JSON object or too long.
        """
        contents = self.read_all(server, (REPORT, ATTESTED))
        if not contents.get(REPORT):
            return None
        report = parse_report(contents[REPORT])
        if "attestation" in report:
            return with_attested(report, contents.get(ATTESTED))
        return report

    def read(self, server: Server, path: str, *, service: str = compose.SERVICE) -> bytes | None:
        """Return a file as a running container sees it, at most MAX_REPORT + 1 bytes; None if it is missing.

        Raise GemmaspecError if the daemon does not pass it on.
        """
        return self.read_all(server, (path,), service=service).get(path)

    def read_all(self, server: Server, paths: Sequence[str], *, service: str = compose.SERVICE) -> Mapping[str, bytes]:
        """Return files as a running container sees them, by path, at most MAX_REPORT + 1 bytes of each.

        Those that are missing are left out. Raise GemmaspecError if the daemon does not pass them on.
        """
        found: dict[str, bytes] = {}
        with _answering(self.endpoint):
            for few in (paths[start : start + _AT_ONCE] for start in range(0, len(paths), _AT_ONCE)):
                found.update(self._read(server, few, service))
        return found

    def _read(self, server: Server, paths: Sequence[str], service: str) -> Mapping[str, bytes]:
        """Return files by one command in the container; none if it does not run."""
        container = self._running_id(server, service)
        if container is None:
            return {}
        for _ in range(_READINGS):
            asked = framed(paths, most=MAX_REPORT + 1)
            try:
                created = self._client.api.exec_create(container, asked.command)["Id"]
                output, _ = self._client.api.exec_start(created, demux=True)
                contents = asked.contents(output or b"")
                if contents is None and self._client.api.exec_inspect(created)["ExitCode"]:
                    return {}
            except APIError:  # it stopped in the meantime
                return {}
            except ValueError:  # the daemon has lost the beginning, and the SDK takes the text for a frame's head
                continue
            if contents is not None:
                return contents
        raise GemmaspecError(f"docker does not pass on what was read in {container[:12]}: {', '.join(paths)}")

    def _running_id(self, server: Server, service: str) -> str | None:
        """Return the id of the container if it runs, by one request and not by two as `_container`."""
        containers = self._client.api.containers(filters={"label": _labels(server, service), "status": ["running"]})
        newest = max(containers, key=lambda container: int(container["Created"]), default=None)
        return str(newest["Id"]) if newest else None

    def _log_lines(self, container: Container, *, follow: bool, tail: int | None) -> Iterator[str]:
        with WAITS.on("the Docker daemon"):
            stream = container.logs(
                stream=True,
                follow=follow,
                tail="all" if tail is None else tail,
                since=log_start(container.attrs["State"]),
            )
        try:
            yield from lines(stream)
        finally:
            with contextlib.suppress(OSError):  # the daemon closed it first
                stream.close()
        with contextlib.suppress(NotFound):  # removed means stopped, so this is the end of its lines
            container.reload()  # a daemon that goes away looks like the end too; this call shows the difference

    def _ensure_ours(self, server: Server) -> None:
        """Raise EnvironmentMissing if the project's container was started from another folder.

        Compose identifies projects only by name, so it would replace or stop another state folder's stack.
        """
        with _answering(self.endpoint):
            container = self._container(server)
        if container:
            file = container.labels.get("com.docker.compose.project.config_files", "")
        else:
            file = ""
        if container and file and Path(file) != compose.file_of(server):
            raise EnvironmentMissing(
                f"the container {clean(str(container.name))} was started from {clean(file)}, not this state folder",
                hint=f"docker compose -p {server.project} down    # or set GEMMASPEC_STATE to the folder it came from",
            )

    def _make_volumes(self, server: Server) -> None:
        """Make the stack's volumes with a label of this state folder, so that `gc` knows its own."""
        text = read_regular(compose.file_of(server))
        if text is not None:
            with _answering(self.endpoint):
                volumes.make(self._client, server.project, text.decode(), make_state_id())

    def _container(self, server: Server, service: str = compose.SERVICE) -> Container | None:
        labels = _labels(server, service)
        containers = self._client.containers.list(all=True, filters={"label": labels}, ignore_removed=True)
        return max(containers, key=lambda container: str(container.attrs["Created"]), default=None)

    def ensure_nvidia(self) -> None:
        """Raise EnvironmentMissing if the daemon does not support NVIDIA GPUs."""
        with _answering(self.endpoint):
            info = self._client.info()
        if has_nvidia(info) or (not self.remote and shutil.which(_TOOLKIT_HOOK)):
            return
        raise EnvironmentMissing(
            f"docker at {self.endpoint} has no NVIDIA runtime, so no container can use the GPU",
            hint="sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
            "    # from the NVIDIA Container Toolkit",
        )

    def ensure_port(self, server: Server) -> None:
        """Raise EnvironmentMissing if something else uses the server's port.

        Containers are checked first, because docker knows their names. Other processes of a remote machine are not
        visible.
        """
        with _answering(self.endpoint):
            running = self._client.containers.list(ignore_removed=True)
        for container in running:
            if not publishes(container.attrs, bind=server.bind, port=server.port):
                continue
            if container.labels.get("com.docker.compose.project") == server.project:
                return
            raise port.port_taken(server.bind, server.port, f"the container {container.name}")
        if not self.remote:
            port.ensure_free(server.bind, server.port, as_root=True)


def _labels(server: Server, service: str) -> list[str]:
    """Return what Compose writes on the container of a service."""
    return [
        f"com.docker.compose.project={server.project}",
        f"com.docker.compose.service={service}",
        "com.docker.compose.oneoff=False",
    ]


@contextlib.contextmanager
def _answering(where: endpoint.DockerEndpoint) -> Iterator[None]:
    """Name the daemon while it is slow, and turn its errors into one sentence."""
    with WAITS.on("the Docker daemon"), _explained(where):
        yield


@contextlib.contextmanager
def _explained(where: endpoint.DockerEndpoint) -> Iterator[None]:
    """Turn errors of the daemon into one sentence."""
    try:
        yield
    except NotFound as error:
        raise GemmaspecError(f"the container no longer exists: {clean(str(error.explanation))}") from None
    except APIError as error:
        why = clean(str(error.explanation))
        raise GemmaspecError(f"docker rejected the request: {why}", hint="docker info") from None
    except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, struct.error) as error:
        raise EnvironmentMissing(
            f"docker at {where} stopped answering: {clean(endpoint.why(error))}", hint="docker info"
        ) from None


def stack_archive(folder: Path) -> bytes:
    """Return a tar of the files that a server reads, owned by root and writable by nobody.

    It is for the volume of a daemon that cannot mount this machine's folders.

    Raise UnreadableFile for a file of the stack that is a link, a folder or unreadable.
    """
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in STACK_FILES:
            if name != "compose.yaml":
                content = read_regular(folder / name)
            else:
                content = None
            if content is not None:
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o444
                tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()
