"""The docker engine: Compose starts and stops a stack, the docker SDK looks at it."""

from __future__ import annotations

import contextlib
import shutil
import struct
from collections import deque
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException, NotFound
from docker.models.containers import Container

from gemmaspec.engine import compose, endpoint, port, record
from gemmaspec.engine.container import has_nvidia, log_start, publishes, state_of
from gemmaspec.engine.image import ensure_image
from gemmaspec.engine.lines import clean, lines
from gemmaspec.engine.report import MAX_REPORT, parse_report
from gemmaspec.engine.server import EngineName, Runs, Server, State
from gemmaspec.errors import EnvironmentMissing, GemmaspecError, StartFailed

REPORT: Final = "/run/gemmaspec/report.json"
"""The launcher's report in the container: on a tmpfs, where `docker cp` sees nothing but exec does."""
_TOOLKIT_HOOK: Final = "nvidia-container-runtime-hook"


class DockerEngine:
    """Runs a stack with Docker Compose, on this machine or on the one the docker context names."""

    name: EngineName = "docker"

    @cached_property
    def endpoint(self) -> endpoint.Endpoint:
        """The daemon that is meant. Raise EnvironmentMissing for a docker context that does not exist."""
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
        """Whether the daemon is another machine's (ssh://, tcp://): no folder of this one can be mounted."""
        return self.endpoint.remote

    def ping(self) -> str:
        """Return the daemon's version. Raise EnvironmentMissing saying why it does not answer."""
        with _answering(self.endpoint):
            return str(self._client.version()["Version"])

    def data_root(self) -> Path | None:
        """Return where the daemon keeps its images; None when that is not on this machine, or not to be seen."""
        with _answering(self.endpoint):
            root = Path(str(self._client.info().get("DockerRootDir", "")))
        return root if root.is_absolute() and not self.remote and root.exists() else None

    def preflight(self, server: Server, *, port_is_free: bool = False) -> None:
        """Raise EnvironmentMissing when the server could not start; pulls a missing image."""
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
                ensure_image(self._client, server.image)

    def start_command(self, server: Server) -> tuple[str, ...]:
        """`docker compose … up` as `start` runs it."""
        return compose.up_args(server)

    def start(self, server: Server) -> None:
        """`docker compose up` in the background. Raise EnvironmentMissing or StartFailed."""
        self._ensure_ours(server)
        try:
            compose.start(server)
        except BaseException:  # Ctrl-C too: Compose may have created, or even started, the container
            with contextlib.suppress(GemmaspecError):
                compose.stop(server)
            raise

    def ensure_answers(self, server: Server) -> None:
        """Raise StartFailed unless the container runs and publishes the port, which docker gives to one alone."""
        with _answering(self.endpoint):
            container = self._container(server)
        if container is None or container.status != "running":
            raise StartFailed(f"the container of {server.name} is gone, and something else answers on {server.port}")
        if not publishes(container.attrs, bind=server.bind, port=server.port):
            raise StartFailed(f"the container of {server.name} does not publish port {server.port}")

    def stop(self, server: Server) -> bool:
        """`docker compose down`, after which volumes remain; True when there was something running."""
        self._ensure_ours(server)
        was = self.state(server).status in ("running", "restarting")
        compose.stop(server)
        return was

    def state(self, server: Server) -> State:
        """Return the container's state, read from the daemon. Raise EnvironmentMissing when it does not answer."""
        with _answering(self.endpoint):
            container = self._container(server)
            return state_of(container.attrs) if container else State(status="absent")

    def runs(self, server: Server) -> Runs | None:
        """Return the container's command and image."""
        with _answering(self.endpoint):
            container = self._container(server)
            if container is None or state_of(container.attrs).status not in ("running", "restarting"):
                return None
            command = (container.attrs["Path"], *container.attrs["Args"])
            return Runs(command=record.without_key(command), image=str(container.attrs["Image"]))

    def logs(self, server: Server, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Clean lines of the container since its last start; with `follow`, until it stops."""
        with _answering(self.endpoint):
            container = self._container(server)
            if container is None:
                return
            found = self._log_lines(container, follow=follow, tail=tail)
            # One line of docker's may be several here (a progress bar), so the last ones are counted again.
            yield from found if follow or tail is None else deque(found, maxlen=tail)

    def report(self, server: Server) -> dict[str, Any] | None:
        """Return the launcher's report, read inside the running container; None when there is none (yet).

        Raise GemmaspecError when it is no JSON object or too long.
        """
        text = self.read(server, REPORT)
        return parse_report(text) if text else None

    def read(self, server: Server, path: str) -> bytes | None:
        """Return a file as the running server sees it, at most MAX_REPORT + 1 bytes of it; None when there is none."""
        with _answering(self.endpoint):
            container = self._container(server)
            if container is None or container.status != "running":
                return None
            try:
                # `head -c`, unlike `cat`, ends by itself on a file that does not.
                done = container.exec_run(["head", "-c", str(MAX_REPORT + 1), path], demux=True)
            except APIError:  # it stopped in between
                return None
        text, _ = cast("tuple[bytes | None, bytes | None]", done.output)
        return text or b"" if done.exit_code == 0 else None

    def _log_lines(self, container: Container, *, follow: bool, tail: int | None) -> Iterator[str]:
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
        with contextlib.suppress(NotFound):  # removed: a stop, and so the end of its lines
            container.reload()  # a daemon that goes away also looks like the end; asking again tells

    def _ensure_ours(self, server: Server) -> None:
        """Raise EnvironmentMissing when the project's container was started from another folder.

        Compose knows projects by name alone, so that another state folder's stack would be replaced or stopped.
        """
        with _answering(self.endpoint):
            container = self._container(server)
        file = container.labels.get("com.docker.compose.project.config_files", "") if container else ""
        if container and file and Path(file) != server.folder.absolute() / "compose.yaml":
            raise EnvironmentMissing(
                f"the container {clean(str(container.name))} was started from {clean(file)}, not by this state folder",
                hint=f"docker compose -p {server.project} down    # or set GEMMASPEC_STATE to the folder it came from",
            )

    def _container(self, server: Server) -> Container | None:
        """Return the service's newest container."""
        labels = [
            f"com.docker.compose.project={server.project}",
            f"com.docker.compose.service={compose.SERVICE}",
            "com.docker.compose.oneoff=False",
        ]
        found = self._client.containers.list(all=True, filters={"label": labels}, ignore_removed=True)
        return max(found, key=lambda container: str(container.attrs["Created"]), default=None)

    def ensure_nvidia(self) -> None:
        """Raise EnvironmentMissing when the daemon cannot hand out NVIDIA GPUs."""
        with _answering(self.endpoint):
            info = self._client.info()
        if has_nvidia(info) or (not self.remote and shutil.which(_TOOLKIT_HOOK)):
            return
        raise EnvironmentMissing(
            f"docker at {self.endpoint} has no NVIDIA runtime, so no container can use the GPU",
            hint="sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
            "    # of the NVIDIA Container Toolkit",
        )

    def ensure_port(self, server: Server) -> None:
        """Raise EnvironmentMissing when the server's port is another's.

        Containers first: docker knows their names. A remote machine's other processes cannot be asked.
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


@contextlib.contextmanager
def _answering(where: endpoint.Endpoint) -> Iterator[None]:
    """Turn a daemon that goes away, or refuses, into one sentence."""
    try:
        yield
    except NotFound as error:
        raise GemmaspecError(f"the container is no longer there: {clean(str(error.explanation))}") from None
    except APIError as error:
        why = clean(str(error.explanation))
        raise GemmaspecError(f"docker refused: {why}", hint="docker info") from None
    except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, struct.error) as error:
        raise EnvironmentMissing(
            f"docker at {where} stopped answering: {clean(str(error))}", hint="docker info"
        ) from None
