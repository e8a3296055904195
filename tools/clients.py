"""Let real clients, set up with what `gemmaspec connect` prints, talk with the running tiny-cpu, and print a table.

    .venv/bin/python tools/clients.py [CLIENT …]

Clients are installed from npm and the package index into .tools/clients. Each gets a home of its own and a proxy that
does not exist for every address but 127.0.0.1, so that it can talk with nothing else. Exit code 1 if one fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.tiny.talk import OTHERWISE, RESULT, TALK

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / ".tools" / "clients"
FIRST, SECOND, TOOL = "What are you?", "Why is the sky blue?", "What is the weather in Paris?"
WEATHER = 'def get_weather(city: str) -> str:\n    "Weather of a city, now."\n    return "rain"'
STREAMS = """exec(open("ask.py").read().partition("answer =")[0])
told = client.chat.completions.create(model="tiny", stream=True, messages=[{"role": "user", "content": "Hello"}])
print("".join(part.choices[0].delta.content or "" for part in told if part.choices))"""
CALLS = """import sys
exec(open("ask.py").read().partition("answer =")[0])
city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": city}}]
talk = [{"role": "user", "content": sys.argv[1]}]
name, words, number = "", "", ""
for part in client.chat.completions.create(model="tiny", messages=talk, tools=tools, stream=True):
    for call in part.choices[0].delta.tool_calls or () if part.choices else ():
        number, name = number or call.id, name or call.function.name
        words += call.function.arguments or ""
call = {"id": number, "type": "function", "function": {"name": name, "arguments": words}}
talk += [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": number, "content": "rain"}]
print(client.chat.completions.create(model="tiny", messages=talk, tools=tools).choices[0].message.content)"""
"""A streamed answer, and a streamed call of the tool with the answer after it, by the client that `connect` printed."""
OFFLINE = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
QUIET = {
    "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost", "DO_NOT_TRACK": "1", "CI": "1",
    "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1", "CONTINUE_TELEMETRY_ENABLED": "0",
    "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False",
}  # fmt: skip
AIDER = (
    *("aider", "--no-git", "--yes-always", "--no-check-update", "--analytics-disable", "--no-pretty"),
    *("--input-history-file", ".input-history", "--chat-history-file", ".chat-history.md"),
)
"""Even without git it would write its histories to the root of the repository around its folder."""
LIMIT_S = 900
"""A prompt of an agent is 25,000 tokens, which two cores read in a minute or two."""


@dataclass(frozen=True)
class Tried:
    """A client that is tried."""

    package: str
    """npm:NAME, pip:NAME, or the name of a program of this machine."""
    file: str
    """Where its settings go, below its home; "" for a shell."""
    turns: tuple[tuple[str, ...], ...]
    """What is run, one command after the other; {first}, {second} are questions."""


CLIENTS: Mapping[str, Tried] = {
    "openai": Tried(
        "pip:openai", "ask.py", (("python", "ask.py"), ("python", "-c", STREAMS), ("python", "-c", CALLS, "{tool}"))
    ),
    "curl": Tried("curl", "ask.sh", (("sh", "ask.sh"),)),
    "llm": Tried(
        "pip:llm",
        "llm/extra-openai-models.yaml",
        (
            ("llm", "-m", "tiny-cpu", "{first}"),
            ("llm", "-c", "{second}"),
            ("llm", "-m", "tiny-cpu", "--functions", WEATHER, "{tool}"),
        ),
    ),
    "aider": Tried(
        "pip:aider-chat",
        ".aider.conf.yml",
        tuple(
            (*AIDER, *more) for more in (("--message", "{first}"), ("--restore-chat-history", "--message", "{second}"))
        ),
    ),
    "opencode": Tried(
        "npm:opencode-ai", "opencode.json", (("opencode", "run", "{first}"), ("opencode", "run", "-c", "{second}"))
    ),
    "claude-code": Tried(
        "npm:@anthropic-ai/claude-code", "", (("claude", "-p", "{first}"), ("claude", "-p", "-c", "{second}"))
    ),
    "codex": Tried(
        "npm:@openai/codex",
        ".codex/config.toml",
        (
            ("codex", "exec", "--strict-config", "--skip-git-repo-check", "{first}"),
            ("codex", "exec", "resume", "--last", "--skip-git-repo-check", "{second}"),
        ),
    ),
    "continue": Tried(
        "npm:@continuedev/cli",
        ".continue/config.yaml",
        tuple(
            ("cn", "--config", ".continue/config.yaml", "-p", *more)
            for more in (("{first}",), ("--resume", "{second}"))
        ),
    ),
    "litellm": Tried("pip:litellm[proxy]", "config.yaml", ()),
}


def main(names: list[str]) -> int:
    """Try them and return the exit code."""
    failed = False
    print("| client | version | tried | outcome |\n| --- | --- | --- | --- |")
    for name in names or CLIENTS:
        began = time.monotonic()
        version, tried, fault = try_client(name, CLIENTS[name])
        failed = failed or bool(fault)
        took = f"{time.monotonic() - began:.0f} s"
        print(f"| {name} | {version} | {tried} | {fault or 'right'}, {took} |", flush=True)
    return int(failed)


def try_client(name: str, client: Tried) -> tuple[str, str, str]:
    """Return a client's version, what was tried, and what was wrong."""
    programs, version = install(name, client.package)
    home = Path(
        tempfile.mkdtemp(prefix=f"{name}-")
    )  # not below this checkout, which clients would take for their project
    text = connect(name)
    environment = {
        **os.environ,
        **OFFLINE,
        **QUIET,
        "HOME": str(home),
        "PWD": str(home),
        "LLM_USER_PATH": str(home / "llm"),
    }
    environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    if client.file:
        (home / client.file).parent.mkdir(parents=True, exist_ok=True)
        (home / client.file).write_text(text + "\n")
    else:
        environment |= dict(shlex.split(line)[1].split("=", 1) for line in text.splitlines())
    if name == "litellm":
        return version, FIRST, through_proxy(home, environment)
    expected = {"{first}": (FIRST, reply(FIRST)), "{second}": (SECOND, reply(SECOND)), "{tool}": (TOOL, RESULT)}
    tried = []
    for turn in client.turns or ():
        mark = next((mark for mark in expected if mark in turn), "")
        question, answer = expected.get(mark, ("Hello", reply("Hello")))
        tried.append(question)
        command = [question if word == mark else word for word in turn]
        if fault := ask(command, home, environment, answer):
            return version, "; ".join(tried), fault
    return version, "; ".join(tried), ""


def install(name: str, package: str) -> tuple[Path, str]:
    """Return the folder of a client's programs, and its version."""
    manager, _, what = package.partition(":")
    if not what:
        return Path("/usr/bin"), run([package, "--version"]).split()[1]
    folder = TOOLS / name
    if manager == "npm":
        if not (folder / "node_modules").is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            run(["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder), what])
        manifest = json.loads((folder / "node_modules" / what / "package.json").read_text())
        return folder / "node_modules" / ".bin", str(manifest["version"])
    uv = str(Path(sys.executable).with_name("uv"))
    if not (folder / "bin" / "python").exists():
        run([uv, "venv", "-q", str(folder)])
        run([uv, "pip", "install", "-q", "--python", str(folder / "bin" / "python"), what])
    bare = what.partition("[")[0]
    shown = run([uv, "pip", "show", "--python", str(folder / "bin" / "python"), bare])
    return folder / "bin", re.findall(r"^Version: (.*)$", shown, re.M)[0]


def connect(name: str) -> str:
    """Return what `gemmaspec connect` prints."""
    return run([sys.executable, "-m", "gemmaspec", "connect", name, "tiny-cpu"]).rstrip()


def reply(question: str) -> str:
    """Return what the tiny target learned to say."""
    return next(reply for asked, reply in TALK if question in asked)


def ask(command: list[str], home: Path, environment: Mapping[str, str], answer: str) -> str:
    """Run a turn and return what was wrong with what it printed."""
    with (TOOLS / f"{command[0]}.txt").open("a") as kept:
        try:
            done = subprocess.run(
                command, cwd=home, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"no answer in {LIMIT_S} s"
        kept.write(f"$ {shlex.join(command)}\n{done.stdout}{done.stderr}\n")
    return judged(done.stdout, answer, f"exit code {done.returncode}: {done.stderr.strip()[-200:]!r}")


def judged(text: str, answer: str, otherwise: str) -> str:
    """Return "" for a text that holds the whole answer, wherever its lines break."""
    shown = re.sub(r"\s+", " ", text)
    whole = answer in shown or OTHERWISE in shown  # what is asked may be hidden in instructions of the client
    return "" if whole else f"not the taught reply: {shown.strip()[-200:]!r}, {otherwise}"


def through_proxy(home: Path, environment: Mapping[str, str]) -> str:
    """Start LiteLLM's proxy with its settings, ask through it, and return what was wrong."""
    key, port = f"sk-{secrets.token_hex(24)}", free_port()
    command = ["litellm", "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    with (home / "transcript.txt").open("w") as log:
        proxy = subprocess.Popen(
            command, cwd=home, env={**environment, "LITELLM_MASTER_KEY": key}, stdout=log, stderr=log
        )
        try:
            text = asked_over_http(f"http://127.0.0.1:{port}/v1/chat/completions", key, proxy)
        finally:
            proxy.terminate()
            proxy.wait()
    return judged(text, reply(FIRST), (home / "transcript.txt").read_text()[-200:])


def asked_over_http(url: str, key: str, proxy: subprocess.Popen[bytes]) -> str:
    """Return the answer of a proxy that may still be starting."""
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": FIRST}]}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    until = time.monotonic() + 180
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < until and proxy.poll() is None:
        asked = urllib.request.Request(url, body, headers)
        with contextlib.suppress(OSError), opener.open(asked, timeout=120) as answer:
            return str(json.load(answer)["choices"][0]["message"]["content"])
        time.sleep(1)
    return ""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(command: list[str]) -> str:
    """Run a command and return what it printed; its failure ends this."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
