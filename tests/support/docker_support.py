"""What the docker engine's tests need: an image made on the spot, stacks, a relay, a fake registry."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import docker
import pytest

from gemmaspec.run.engine.server import Server
from tests.support.real import RUN, free_port

IMAGE = f"gemmaspec-test-shell:{RUN}"


def shell_layer() -> bytes:
    """A tar of this machine's sh, cat, head, sleep and their libraries: an image without a registry.

    A file that names the run makes it another image in each: two runs do not remove each other's.
    """
    files: set[str] = set()
    for program in ("sh", "cat", "head", "sleep"):
        found = shutil.which(program)
        assert found
        files.add(found)
        listed = subprocess.run(["ldd", found], capture_output=True, text=True, check=False).stdout
        files.update(re.findall(r"(/\S+) \(0x", listed))
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w", dereference=True) as tar:
        for file in sorted(files):
            tar.add(file, arcname=file.lstrip("/"))
        tar.addfile(tarfile.TarInfo(f"run-{RUN}"))
    return layer.getvalue()


def make_image(client: docker.DockerClient) -> None:
    """Import the shell image under IMAGE."""
    repository, tag = IMAGE.split(":")
    client.api.import_image_from_data(shell_layer(), repository=repository, tag=tag)


def stack(folder: Path, script: str, *, port: int | None = None, **service: Any) -> Server:
    """A stack folder whose service runs a shell script; JSON is YAML."""
    folder.mkdir(parents=True, exist_ok=True)
    published = port or free_port()
    vllm = {
        "image": IMAGE,
        "command": ["sh", "-c", script.replace("$", "$$")],
        "init": True,
        "tmpfs": ["/run/gemmaspec"],
        "ports": [f"127.0.0.1:{published}:8000"],
        **service,
    }
    text = json.dumps({"services": {"vllm": vllm}})
    (folder / "compose.yaml").write_text(text)
    return Server(
        name=folder.name,
        folder=folder,
        port=published,
        model="m",
        speculates=True,
        image=IMAGE,
        stop_grace_s=1,
    )


def wait_for(condition: Callable[[], Any], *, seconds: float = 120) -> Any:
    """The condition's first true value. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


@contextlib.contextmanager
def relay(unix_socket: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """A daemon on TCP: 127.0.0.1:PORT to and from a unix socket. Yields its URL and a way to cut it."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_sockets: list[socket.socket] = [listener]

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(unix_socket)
                open_sockets.extend((near, far))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    def cut() -> None:
        for one in open_sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}", cut
    finally:
        cut()


@contextlib.contextmanager
def fake_registry(layer: bytes) -> Iterator[str]:
    """A fake registry: has good/image:1, refuses private/*, knows nothing else. Yields host:port."""
    blobs, manifest = _image(layer)

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.removeprefix("/v2/")
            if not path:
                self._answer(200, b"{}", "application/json")
            elif path.startswith("private/"):
                self._refuse(403, "DENIED", "requested access to the resource is denied")
            elif path == "good/image/manifests/1" or path.endswith(_digest(manifest)):
                self._answer(200, manifest, "application/vnd.docker.distribution.manifest.v2+json")
            elif blob := blobs.get(path.rpartition("/")[2]):
                self._answer(200, blob, "application/octet-stream")
            else:
                self._refuse(404, "MANIFEST_UNKNOWN", "manifest unknown")

        def _refuse(self, status: int, code: str, message: str) -> None:
            body = json.dumps({"errors": [{"code": code, "message": message}]}).encode()
            self._answer(status, body, "application/json")

        def _answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
            self.send_header("Docker-Content-Digest", _digest(body))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _image(layer: bytes) -> tuple[dict[str, bytes], bytes]:
    """The blobs by digest and the manifest (schema 2) of a one-layer image."""
    rootfs = {"type": "layers", "diff_ids": [_digest(layer)]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}).encode()
    kind = "application/vnd.docker"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.distribution.manifest.v2+json",
        "config": _blob(config, f"{kind}.container.image.v1+json"),
        "layers": [_blob(layer, f"{kind}.image.rootfs.diff.tar")],
    }
    return {_digest(config): config, _digest(layer): layer}, json.dumps(manifest).encode()


def _blob(data: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": kind, "size": len(data), "digest": _digest(data)}


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def silent_registry(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a FAKE `docker` on the PATH for which no registry answers; everything else it hands to the real one."""
    real = shutil.which("docker") or "false"
    program = folder / "no-registry" / "docker"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$1" = manifest ] && exit 1\nexec {real} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
