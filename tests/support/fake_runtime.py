"""A fake vLLM that the process engine starts with the real launcher: an HTTP server, for faults that a real one is too
slow for, or cannot be made to show.

The environment says how it behaves: FAKE_VLLM_SECONDS until it listens, or until the file FAKE_VLLM_GO is there;
FAKE_VLLM_EXIT to leave with a code instead, FAKE_VLLM_SAYS to print, FAKE_VLLM_DIES_OF
the text of a request that ends it, FAKE_VLLM_SILENT paths that get no answer,
FAKE_VLLM_DRIBBLES a file with which every header comes byte by byte and never ends, FAKE_VLLM_GROWS a file with which it takes ever more memory, FAKE_VLLM_LARGE to be as slow to end as a real one:
with 60 threads and 300 MB, and on SIGTERM only once its streams have ended; FAKE_VLLM_STUBBORN to have a child that
SIGTERM does not end. A streamed answer names its port, 20 times a
second. Like vLLM it listens with SO_REUSEPORT, and answers 404 for a model that is not its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemmaspec.core.data import MODELS
from gemmaspec.core.files import state_dir
from tests.support.launching import make_place
from tests.support.real import Done
from tests.support.warm import harness

PROGRAM = """\
import json, os, signal, socketserver, sys, threading, time  # no http.server: it takes as long as all the rest

args = sys.argv[1:]
host, port, model = (args[args.index(flag) + 1] for flag in ("--host", "--port", "--served-model-name"))
print(os.environ.get("FAKE_VLLM_SAYS", "fake vllm"), flush=True)
until = time.monotonic() + float(os.environ.get("FAKE_VLLM_SECONDS", "0"))
while time.monotonic() < until and not os.path.exists(os.environ.get("FAKE_VLLM_GO", "")):
    time.sleep(min(0.05, max(0, until - time.monotonic())))
if "FAKE_VLLM_EXIT" in os.environ:
    sys.exit(int(os.environ["FAKE_VLLM_EXIT"]))


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = allow_reuse_port = daemon_threads = True
    drafts = generated = running = 0


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        method, self.path, _ = self.rfile.readline().decode().split()
        lines = iter(lambda: self.rfile.readline().decode().strip(), "")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if method == "POST":
            self.post(json.loads(self.rfile.read(int(headers["content-length"]))))
        else:
            self.get()

    def get(self):
        if self.path in os.environ.get("FAKE_VLLM_SILENT", "").split():
            time.sleep(99)
        rows = (("drafts", 1), ("draft_tokens", 4), ("accepted_tokens", 2))
        lines = [f'vllm:spec_decode_num_{name}_total{{engine="0"}} {n * self.server.drafts}.0' for name, n in rows]
        lines.append(f'vllm:generation_tokens_total{{engine="0"}} {self.server.generated}.0')
        lines.append(f'vllm:num_requests_running{{engine="0"}} {self.server.running}.0')
        self.answer(200, "\\n".join(lines).encode() + b"\\n" if self.path == "/metrics" else b"")

    def post(self, asked):
        if os.environ.get("FAKE_VLLM_DIES_OF", "\\0") in json.dumps(asked):
            os._exit(1)
        if asked["model"] != model:
            said = f"The model `{asked['model']}` does not exist. Valid aliases: {model}"
            return self.answer(404, json.dumps({"error": {"message": said}}).encode())
        self.server.drafts += 5
        self.server.generated += 7 + 5 * 2
        if asked.get("stream"):
            return self.stream(asked["max_tokens"])
        choice = {"index": 0, "message": {"role": "assistant", "content": "one two"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}
        self.answer(200, json.dumps({"id": "x", "choices": [choice], "usage": usage}).encode())

    def stream(self, count):
        self.server.running += 1
        try:
            self.wfile.write(b"HTTP/1.0 200 OK\\r\\nContent-Type: text/event-stream\\r\\n\\r\\n")
            for index in range(count):
                choice = {"index": 0, "delta": {"content": f"{port} "}}
                self.wfile.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\\n\\n")
                time.sleep(0.05)
            self.wfile.write(b"data: [DONE]\\n\\n")
        finally:
            self.server.running -= 1

    def answer(self, status, body):
        self.wfile.write(f"HTTP/1.0 {status} fake\\r\\n".encode())
        while os.path.exists(os.environ.get("FAKE_VLLM_DRIBBLES", "")):
            self.wfile.write(b"X")
            time.sleep(0.3)
        self.wfile.write(f"Content-Length: {len(body)}\\r\\n\\r\\n".encode() + body)


if "FAKE_VLLM_STUBBORN" in os.environ and not os.fork():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)

server = Server((host, int(port)), Handler)


def grows(until):
    held = bytearray()
    while True:
        held += b"x" * 1_000_000 * os.path.exists(until)
        time.sleep(0.01)


if "FAKE_VLLM_GROWS" in os.environ:
    threading.Thread(target=grows, args=(os.environ["FAKE_VLLM_GROWS"],), daemon=True).start()


def drained():
    while server.running:
        time.sleep(0.01)
    os._exit(0)


if "FAKE_VLLM_LARGE" in os.environ:
    held = bytearray(b"x") * 300_000_000
    for _ in range(60):
        threading.Thread(target=time.sleep, args=(999,), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=drained).start())
server.serve_forever()
"""


@dataclass(frozen=True)
class Fake:
    """A machine whose only vLLM is the fake one."""

    python: Path
    profiles: Path

    def profile(self, name: str, port: int) -> None:
        """Write a profile that runs the fake on a port, and serves it as model-NAME."""
        text = (
            f"extends: tiny-cpu\nname: {name}\nruntime: {{python: {self.python}, vllm: null}}\n"
            "patches: {required: [], optional: []}\n"
            f"serve: {{port: {port}, served_model_name: model-{name}}}\ncontainer: {{stop_grace_seconds: 5}}\n"
        )
        (self.profiles / f"{name}.yaml").write_text(text)

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a command; no daemon is asked."""
        own = {"GEMMASPEC_PROFILES": str(self.profiles), "GEMMASPEC_STATE": str(state_dir())}
        return {**os.environ, **own, "DOCKER_HOST": "unix:///nonexistent/docker.sock", **(extra or {})}

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Begin `gemmaspec …`."""
        command = [sys.executable, "-m", "gemmaspec", *arguments]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment(env)
        )

    def run(self, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = 120) -> Done:
        """Run `gemmaspec …` to its end."""
        return self.race(arguments, env=env, timeout=timeout)[0]

    def race(self, *commands: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = 300) -> list[Done]:
        """Run several commands at the same moment. Fails when they have not ended after `timeout` seconds."""
        return harness().race(*commands, env=self.environment(env), timeout=timeout)


def installed(root: Path, program: str = PROGRAM) -> Fake:
    """Make an environment whose `vllm` is the fake or another program, and a folder for profiles."""
    place = make_place(root)
    (place.python.parent / "vllm").write_text(f"#!{place.python}\n{program}")
    (place.package / "__init__.py").write_text("")
    for name, version in (("transformers", "5.19.0"), ("torch", "2.13.0"), ("vllm", "0.32.0")):
        told = place.site / f"{name}-{version}.dist-info" / "METADATA"
        told.parent.mkdir()
        told.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (root / "profiles").mkdir()
    return Fake(place.python, root / "profiles")


def make_models() -> None:
    """Put the tiny models where a start copies them."""
    shutil.copytree(MODELS, state_dir() / "tiny", dirs_exist_ok=True)
