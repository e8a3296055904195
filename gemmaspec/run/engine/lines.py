"""Turn bytes of a server's output into lines that are safe to print, because logs are hostile input.

Docker Compose v2 by its command line: the arguments, and the meaning of its failures.

Check whether a port of this machine is free, and which process uses it.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import ipaddress
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, StartFailed
from gemmaspec.core.files import state_dir
from gemmaspec.run.engine.server import Server
from gemmaspec.run.stack.serve import SERVICE as WATCH

MAX_LINE: Final = 64 * 1024
"""Maximum characters of a line; longer ones are split, so that they cannot fill the memory."""

_ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement, screen clearing
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS, SOS, PM, APC: titles, links, clipboard
    r"|\x1b[ -/]*[0-~]"  # two-character escapes
    r"|\x9b[0-?]*[ -/]*[@-~]"  # CSI as one C1 character
)
# Controls except tab, and the characters that reorder or hide text on a terminal.
_CONTROLS: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Return `text` without terminal escapes and control characters, except tabs."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield clean lines of a byte stream that may be split anywhere, even inside a character.

    Invalid UTF-8 becomes U+FFFD. A lone carriage return ends a line too, so that each step of a progress bar is a line.
    An incomplete last line comes at the end of the stream.
    """
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
    rest = ""
    for chunk in chunks:
        *whole, rest = (rest + decoder.decode(chunk)).split("\n")
        yield from map(clean, whole)
        if len(rest) > MAX_LINE:
            yield clean(rest)
            rest = ""
    rest += decoder.decode(b"", final=True)
    if rest.strip("\n"):
        yield clean(rest.strip("\n"))


def host_line(host: str, line: str) -> str:
    """Return a line of a rank's log after its host's name."""
    return f"{host} | {line}"


def split_host(line: str) -> tuple[str, str]:
    """Return the host and the line that `host_line` joined."""
    host, _, text = line.partition(" | ")
    return host, text


SERVICE: Final = "vllm"
"""The service that answers requests."""

NOWHERE: Final[Mapping[str, str]] = {}
"""No variables: the environment of this process chooses the daemon."""
REMOTE_S: Final = 300.0
"""Seconds that creating or starting a container on another machine may take; its image was pulled before."""
SLACK_S: Final = 60.0
"""Seconds beyond the grace period after which a daemon no longer stops a container."""

_INSTALL: Final = "sudo apt-get install docker-compose-plugin    # Ubuntu's own: docker-compose-v2"
_SHOWN_LINES: Final = 20
_MACHINE_FAULTS: Final = {
    "could not select device driver": "docker has no NVIDIA runtime",
    "port is already allocated": "the port is in use",
    "address already in use": "the port is in use",
    "no space left on device": "no space left on docker's disk",
    "no such image": "the image is missing",
}


_COMPOSE: Final[Mapping[str, tuple[str, ...]]] = {
    "up": ("up", "--detach", "--no-build", "--quiet-pull"),  # Compose does nothing if the same configuration runs
    "create": ("create", "--no-build"),  # so that files can be copied into its volume before it starts
    "start": ("start",),
    "watch": ("up", "--detach", "--no-build", "--no-deps", "--no-recreate", WATCH),  # and the server is left as it is
}


def args_of(server: Server, verb: str) -> tuple[str, ...]:
    """Return the command that starts in the background ("up"), creates, starts what was created, or starts a watch."""
    return (*_compose(server), "-f", str(file_of(server)), *_COMPOSE[verb])


def file_of(server: Server) -> Path:
    """Return the server's compose file."""
    return server.folder.absolute() / server.compose_file


def _compose(server: Server) -> tuple[str, ...]:
    return ("docker", "compose", "--ansi", "never", "-p", server.project)


def environment() -> dict[str, str]:
    """Return this process's environment, which Compose interpolates and passes on by name, plus GEMMASPEC_STATE.

    Compose's own COMPOSE_* variables are omitted, because they would add files, profiles or another project name.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COMPOSE_")}
    return kept | {"GEMMASPEC_STATE": str(state_dir())}


def act(server: Server, verb: str, where: Mapping[str, str] = NOWHERE) -> None:
    """Run the command of `args_of`. Raise EnvironmentMissing for a problem of the machine, StartFailed otherwise.

    Raise EnvironmentMissing also if the daemon has not answered within five minutes, except while it may pull.
    """
    ensure_docker_cli()
    done = _run(args_of(server, verb), where, timeout_s=None if verb == "up" else REMOTE_S)
    if done.returncode:
        raise why_not_up(server, done.stderr)


def stop(server: Server, where: Mapping[str, str] = NOWHERE) -> None:
    """Run `docker compose down`. Raise GemmaspecError with Compose's message.

    Raise EnvironmentMissing if the daemon has not stopped it within its grace period and a minute.
    """
    ensure_docker_cli()
    # everything with the project's label except volumes; compose.yaml is not read, so that a broken or deleted file or
    # an unset variable cannot keep a server running
    arguments = (*_compose(server), "down", "--remove-orphans", "--timeout", str(round(server.stop_grace_s)))
    done = _run(arguments, where, timeout_s=server.stop_grace_s + SLACK_S)
    if done.returncode:
        raise GemmaspecError(
            f"docker compose could not stop {server.project}: {_last_lines(done.stderr)}",
            hint=f"docker compose -p {server.project} ps --all",
        )


def why_not_up(server: Server, output: str) -> GemmaspecError:
    """Return the error for Compose's output on stderr."""
    text = _last_lines(output)
    hint = f"docker compose -p {server.project} ps --all"
    for phrase, meaning in _MACHINE_FAULTS.items():
        if phrase in output.lower():
            return EnvironmentMissing(
                f"docker compose could not start {server.name}, because {meaning}: {text}", hint=hint
            )
    return StartFailed(f"docker compose could not start {server.name}: {text}", hint=hint)


def ensure_docker_cli() -> None:
    """Raise EnvironmentMissing if the `docker` command is missing."""
    if not shutil.which("docker"):
        raise EnvironmentMissing(
            "the docker command is not installed",
            hint="sudo apt-get install docker.io    # or https://docs.docker.com/engine/install",
        )


def client_version() -> str:
    """Return the version of the `docker` command. Raise EnvironmentMissing if it is missing."""
    ensure_docker_cli()
    return _version(("docker", "--version")) or "of an unknown version"


def ensure_compose_v2() -> str:
    """Return the version of `docker compose`. Raise EnvironmentMissing if it is missing or older than 2."""
    ensure_docker_cli()
    version = _version(("docker", "compose", "version", "--short"))
    if version is not None and _major(version) >= 2:
        return version
    if version is not None:
        raise EnvironmentMissing(f"`docker compose` is version {version}; gemmaspec needs 2 or newer", hint=_INSTALL)
    old = _version(("docker-compose", "version", "--short")) if shutil.which("docker-compose") else None
    if old is None:
        raise EnvironmentMissing("`docker compose` fails: its plugin is missing", hint=_INSTALL)
    if _major(old) >= 2:
        why = f"Compose {old} is installed as docker-compose, but not as docker's plugin"
        raise EnvironmentMissing(why, hint=_INSTALL)
    raise EnvironmentMissing(f"only Compose v1 is installed (docker-compose {old}); gemmaspec needs v2", hint=_INSTALL)


def _version(command: Sequence[str]) -> str | None:
    """Return the version that a command prints; None if it fails."""
    done = _run(command)
    version = re.search(r"\d+(\.\d+)+[^\s,]*", done.stdout)
    return version.group() if version and not done.returncode else None


def _major(version: str) -> int:
    return int(version.split(".")[0])


def _run(
    command: Sequence[str], where: Mapping[str, str] = NOWHERE, *, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command from `/`, so that no file of the user's folder affects it.

    Raise EnvironmentMissing if it has not ended after `timeout_s` seconds; its processes are killed then.
    """
    process = subprocess.Popen(
        command, env=environment() | dict(where), cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, encoding="utf-8", errors="replace", process_group=0 if timeout_s else None,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise EnvironmentMissing(
            f"`{' '.join(command[:2])}` did not end within {timeout_s:.0f} s: {' '.join(command[-3:])}",
            hint=" ".join((*(f"{name}={value}" for name, value in where.items() if value), "docker info")),
        ) from None
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL) if timeout_s else process.kill()
            process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _last_lines(output: str) -> str:
    kept = [clean(line).strip() for line in output.splitlines() if line.strip()][-_SHOWN_LINES:]
    return "\n".join(kept) or "(no output)"


def ensure_free(bind: str, port: int, *, as_root: bool = False) -> None:
    """Raise EnvironmentMissing, if possible with the process that holds it, unless `port` of `bind` is free.

    `as_root`: the server may use ports below 1024 even if this process may not.
    """
    try:
        _try_to_listen(bind, port)
    except OSError as error:
        if error.errno == errno.EACCES and as_root:
            return
        raise _explained(bind, port, error) from None


def _try_to_listen(bind: str, port: int) -> None:
    """Listen for a moment. SO_REUSEADDR ignores closing connections, but not listeners."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        candidate.bind(address)
        candidate.listen(1)


def _explained(bind: str, port: int, error: OSError) -> EnvironmentMissing:
    if error.errno == errno.EADDRINUSE:
        return port_taken(bind, port, holder(port) or "another process that this user may not inspect")
    if error.errno == errno.EACCES:
        return EnvironmentMissing(
            f"this user may not use port {port}, because it is below 1024", hint="set serve.port to 8000"
        )
    return EnvironmentMissing(
        f"cannot listen on the address {bind}: {error.strerror}",
        hint="ip -brief address    # set serve.bind to one of these, 127.0.0.1 or 0.0.0.0",
    )


def port_taken(bind: str, port: int, by: str) -> EnvironmentMissing:
    """Return the error for a port in use."""
    return EnvironmentMissing(
        f"port {port} on {bind} is in use by {by}",
        hint=f"sudo ss -ltnp 'sport = :{port}'    # stop it, or set serve.port to another port",
    )


def holder(port: int) -> str | None:
    """Return `name (pid N)` of the process that listens on `port`; None if this user may not see it."""
    import psutil  # slow to import, and most commands only ask whether the port is free

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            local = connection.laddr
            if connection.status == psutil.CONN_LISTEN and connection.pid and local and local.port == port:
                return f"{clean(psutil.Process(connection.pid).name())} (pid {connection.pid})"
    return None


def ensure_only(pids: Collection[int], bind: str, port: int) -> None:
    """Raise StartFailed unless these processes, and no others, listen on `port` of `bind`.

    SO_REUSEPORT lets several listeners share a port, and the system distributes connections among them.
    """
    listeners = _listeners(bind, port)
    if listeners is None:
        return  # this system does not list listeners
    others = [pid for pid in listeners if pid not in pids]
    if others:
        raise StartFailed(
            f"{_named(others[0])} also listens on port {port} of {bind}, so requests would go to two servers",
            hint=f"sudo ss -ltnp 'sport = :{port}'    # stop it, or set serve.port to another port",
        )
    if not listeners:
        raise StartFailed(f"no process listens on port {port} of {bind} any more")


def _listeners(bind: str, port: int) -> list[int | None] | None:
    """Return the pids that listen on `port` of an address that overlaps `bind`; None for another user's process."""
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    return [
        connection.pid
        for connection in connections
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
        and _overlaps(connection.laddr.ip, bind)
    ]


def _overlaps(bind: str, other: str) -> bool:
    """Return whether a connection can reach both listening addresses."""
    try:
        first, second = (ipaddress.ip_address(text) for text in (bind, other))
    except ValueError:
        return True  # a name may mean any address
    return first == second or first.is_unspecified or second.is_unspecified


def _named(pid: int | None) -> str:
    if pid is None:
        return "a process of another user"
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        return f"{clean(psutil.Process(pid).name())} (pid {pid})"
    return f"pid {pid}"
