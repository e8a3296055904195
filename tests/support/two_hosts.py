"""Two machines on one: network namespaces joined by a cable that can be pulled, with a real docker daemon in each.

The tests' own process is a third machine, which reaches both daemons over TCP and has no part in the cable between
them. Containers use their daemon's network, so they have its addresses. `python -m tests.support.two_hosts` makes a bed and
keeps it until Ctrl-C, for trials by hand.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import docker
import filelock

from tests.support.fake_runtime import PROGRAM
from tests.support.launching import write_package

IMAGE = "gemmaspec-test-fleet:1"
PYTHON = f"/opt/python/bin/python3.{sys.version_info.minor}"
PORT = 2375
NEEDED = ("ip", "nsenter", "unshare", "dockerd", "docker")
WORKER = """\
import os, sys, time
if "--headless" in sys.argv:
    print(os.environ.get("FAKE_WORKER_SAYS", "fake worker"), flush=True)
    if "FAKE_WORKER_EXIT" in os.environ:
        sys.exit(int(os.environ["FAKE_WORKER_EXIT"]))
    time.sleep(10**6)
"""
"""The fake vLLM of a rank other than 0, in front of that of rank 0."""


class NoTwoHosts(Exception):
    """Two hosts cannot be made here; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One of the two."""

    name: str
    namespace: str
    address: str
    """On the cable."""
    interface: str
    """Of the cable."""
    reached_at: str
    """Its address for this process."""
    daemon: subprocess.Popen[bytes]
    folder: Path

    @property
    def url(self) -> str:
        """The daemon's."""
        return f"tcp://{self.reached_at}:{PORT}"

    @property
    def socket(self) -> str:
        """The daemon's, without the network."""
        return f"unix://{self.folder}/sock"

    def client(self) -> docker.DockerClient:
        """A client that needs no network."""
        return docker.DockerClient(base_url=self.socket)

    def running(self) -> list[str]:
        """The names of the containers that run there."""
        with contextlib.closing(self.client()) as client:
            return [str(one.name) for one in client.containers.list(ignore_removed=True)]

    def kill_all(self) -> None:
        """Kill every container, as a fault would."""
        with contextlib.closing(self.client()) as client:
            for one in client.containers.list(ignore_removed=True):
                one.kill()


@dataclass(frozen=True, kw_only=True)
class Bed:
    """Both machines."""

    one: Machine
    two: Machine

    def fleet_yaml(self) -> str:
        """The fleet.yaml of the two."""
        lines = [
            f"  {host.name}: {{docker: {host.url}, address: {host.address}, interface: {host.interface}}}\n"
            for host in (self.one, self.two)
        ]
        return "hosts:\n" + "".join(lines)

    def cable(self, *, plugged: bool) -> None:
        """Pull the cable between the two, or plug it in again."""
        host = self.two
        _run("ip", "-n", host.namespace, "link", "set", host.interface, "up" if plugged else "down")

    def reachable(self, host: Machine, *, from_here: bool) -> None:
        """Cut the way from this process to a machine, or restore it; the cable between the two stays."""
        _run("ip", "-n", host.namespace, "link", "set", "gs0", "up" if from_here else "down")


@contextlib.contextmanager
def two_hosts(*, prefix: str = "gs", net: str = "10.77", flags: Sequence[str] = ()) -> Iterator[Bed]:
    """Make two hosts, with `flags` for their daemons. Raises NoTwoHosts where that is not possible, with the reason.

    Beds with other prefixes and nets can stand beside each other.
    """
    missing = [program for program in NEEDED if not shutil.which(program)]
    if os.geteuid() != 0 or missing:
        raise NoTwoHosts(f"missing: {', '.join(missing)}" if missing else "network namespaces need root")
    lock = filelock.FileLock(Path(tempfile.gettempdir()) / f"gemmaspec-two-hosts-{prefix}.lock")
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}2"))
    with lock.acquire(timeout=300), contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            _network(undo, prefix, net)
            one = _machine(undo, folder, flags, "one", f"{prefix}-one", f"{net}.5.1", f"{prefix}a", f"{net}.6.2")
            two = _machine(undo, folder, flags, "two", f"{prefix}-two", f"{net}.5.2", f"{prefix}b", f"{net}.7.2")
            for host in (one, two):
                _until_it_answers(host)
        except subprocess.CalledProcessError as error:
            raise NoTwoHosts(f"{' '.join(error.cmd)}: {error.stderr.decode()}") from None
        yield Bed(one=one, two=two)


def _network(undo: contextlib.ExitStack, prefix: str, net: str) -> None:
    one, two, cable = f"{prefix}-one", f"{prefix}-two", (f"{prefix}a", f"{prefix}b")
    for namespace in (one, two):
        subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
        _run("ip", "netns", "add", namespace)
        undo.callback(subprocess.run, ["ip", "netns", "del", namespace], capture_output=True, check=False)
        _run("ip", "-n", namespace, "link", "set", "lo", "up")
    _run("ip", "-n", one, "link", "add", cable[0], "type", "veth", "peer", "name", cable[1], "netns", two)
    _address(one, cable[0], f"{net}.5.1/24")
    _address(two, cable[1], f"{net}.5.2/24")
    for namespace, near, outside in ((one, f"{prefix}0a", f"{net}.6"), (two, f"{prefix}0b", f"{net}.7")):
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", f"{prefix}0", "netns", namespace)
        _run("ip", "addr", "add", f"{outside}.1/24", "dev", near)
        _run("ip", "link", "set", near, "up")
        _address(namespace, f"{prefix}0", f"{outside}.2/24")


def _address(namespace: str, interface: str, address: str) -> None:
    _run("ip", "-n", namespace, "addr", "add", address, "dev", interface)
    _run("ip", "-n", namespace, "link", "set", interface, "up")


def _machine(
    undo: contextlib.ExitStack, root: Path, flags: Sequence[str], name: str, namespace: str, address: str,
    interface: str, reached_at: str,
) -> Machine:  # fmt: skip
    folder = root / name
    folder.mkdir()
    private = (
        "for place in /run/docker /var/run/docker /etc/docker; do mkdir -p $place; mount -t tmpfs none $place; done"
    )
    words = ["dockerd", "--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile", folder / "pid"]
    words += ["-H", f"unix://{folder}/sock", "-H", f"tcp://{reached_at}:{PORT}", "--tls=false", "--bridge=none"]
    words += ["--iptables=false", "--ip-masq=false", *flags]
    inside = ["nsenter", f"--net=/run/netns/{namespace}", "unshare", "-m", "sh", "-c", f'{private}; exec "$@"', "sh"]
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [*inside, *map(str, words)], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    undo.callback(_end, daemon)
    return Machine(
        name=name, namespace=namespace, address=address, interface=interface, reached_at=reached_at, daemon=daemon,
        folder=folder,
    )  # fmt: skip


def _until_it_answers(host: Machine) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and host.daemon.poll() is None:
        # a socket of docker's client that is refused stays open, and ends pytest with an error
        with contextlib.suppress(Exception), socket.socket(socket.AF_UNIX) as listening:
            listening.connect(f"{host.folder}/sock")
            with contextlib.closing(host.client()) as client:
                client.ping()
            return
        time.sleep(0.2)
    said = (host.folder / "log").read_text(errors="replace").splitlines()[-3:]
    raise NoTwoHosts(f"dockerd did not start in a network namespace: {' '.join(said)}")


def _end(daemon: subprocess.Popen[bytes]) -> None:
    """End a daemon, which stops its containers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(daemon.pid, signal.SIGCONT)
        daemon.terminate()
    try:
        daemon.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def load_image(host: Machine, layer: bytes) -> None:
    """Import the image of the fake vLLM."""
    repository, tag = IMAGE.split(":")
    path = f"ENV PATH={Path(PYTHON).parent}"
    with contextlib.closing(host.client()) as client:
        client.api.import_image_from_data(layer, repository=repository, tag=tag, changes=[path])


def share_image(bed: Bed) -> None:
    """Bring the image of the first host to the second; importing it twice would make two."""
    with contextlib.closing(bed.one.client()) as there, contextlib.closing(bed.two.client()) as here:
        here.images.load(b"".join(there.images.get(IMAGE).save(named=True)))


def fake_layer(mark: str = "") -> bytes:
    """A tar of this Python, a fake vLLM beside it, and the libraries of both; `mark` makes it another image."""
    standard = Path(sysconfig.get_path("stdlib"))
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w", dereference=True) as tar:
        binary = Path(sys.executable).resolve()
        objects = [binary, *(standard / "lib-dynload").glob("*.so")]
        tar.add(binary, arcname=PYTHON.lstrip("/"))
        for program in ("sh", "head"):  # by which gemmaspec reads files in a container
            found = shutil.which(program)
            assert found
            tar.add(found, arcname=f"opt/python/bin/{program}")
            objects.append(Path(found))
        home = f"opt/python/lib/{standard.name}"
        tar.add(standard, arcname=home, filter=_needed)
        for library in sorted({one for file in objects for one in _libraries(file)}):
            tar.add(library, arcname=library.lstrip("/"))
        with tempfile.TemporaryDirectory() as made:
            Path(made).chmod(0o755)
            _fake_vllm(Path(made), mark)
            tar.add(made, arcname=f"{home}/site-packages")
        _file(tar, "opt/python/bin/vllm", f"#!{PYTHON}\n{WORKER}{PROGRAM}", 0o755)
        folder = tarfile.TarInfo("var/tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(folder)
    return layer.getvalue()


def _fake_vllm(site: Path, mark: str) -> None:
    write_package(site / "vllm")
    (site / "vllm" / "__init__.py").write_text(f"# {mark}\n")
    for name, version in (("transformers", "5.19.0"), ("torch", "2.13.0"), ("vllm", "0.32.0")):
        told = site / f"{name}-{version}.dist-info" / "METADATA"
        told.parent.mkdir()
        told.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _needed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    left_out = ("/test/", "/site-packages", "/idlelib", "/ensurepip", "/tkinter", "/lib2to3", "/config-", "__pycache__")
    return None if any(part in f"{entry.name}/" for part in left_out) else entry


def _libraries(file: Path) -> Sequence[str]:
    said = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False).stdout
    return re.findall(r"(/\S+) \(0x", said)


def _file(tar: tarfile.TarFile, name: str, text: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    content = text.encode()
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    with two_hosts() as bed:
        sys.stdout.write(bed.fleet_yaml())
        sys.stdout.write(f"# sockets: {bed.one.socket} {bed.two.socket}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
