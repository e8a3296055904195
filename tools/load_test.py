"""Load a running stack as many clients would, with `watch` and `top` running, and count what is lost or leaks.

    .venv/bin/gemmaspec up tiny-cpu
    .venv/bin/python tools/load_test.py tiny-cpu                     # 10,000 requests, 32 at a time
    .venv/bin/python tools/load_test.py tiny-cpu --requests 500

Every request is streamed. 5 % of the clients go away after the first piece, and 1 % send a request that the server has
to refuse. Meanwhile the health check of a container runs every few seconds in every second block of the run, so that
one run compares latency and throughput with the checks and without. Lost is a request that ends in any other way than
its kind should. A process leaks if its memory or its descriptors grow from the second quarter of the run to the last
one by more than a bound. Exit code 1 if something is lost or leaks.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from tools.health_cost import Checking, gauge, quantile

CANCELLED, BAD = 0.05, 0.01
TOKENS = 32
REQUEST_S = 600.0
GROWTH_BYTES = 24 * 1024**2
GROWTH_DESCRIPTORS = 8
SAMPLE_S = 2.0
SETTLED = 10
"""Samples after which a process that has just begun has imported what it needs."""


@dataclass
class Counts:
    """How requests ended."""

    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    answered: int = 0
    cancelled: int = 0
    refused: int = 0
    lost: list[str] = field(default_factory=list)
    first_piece_s: list[float] = field(default_factory=list)
    whole_s: list[tuple[float, float]] = field(default_factory=list)
    """When each whole answer was asked for, by the monotonic clock, and how long it took."""

    @property
    def total(self) -> int:
        """Requests that have ended."""
        return self.answered + self.cancelled + self.refused + len(self.lost)


@dataclass
class Kept:
    """Memory and descriptors of one process over the run."""

    rss: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def growth(self) -> tuple[float, float]:
        """Return what the medians of bytes and descriptors grew from the second quarter to the last."""
        quarter = len(self.rss) // 4
        if not quarter:
            return 0.0, 0.0
        return tuple(  # type: ignore[return-value]  # two of them
            statistics.median(series[-quarter:]) - statistics.median(series[quarter : 2 * quarter])
            for series in (self.rss, self.descriptors)
        )

    def held(self) -> str:
        """Return what it held soon after its start, and at the end."""
        if not self.rss:
            return "nothing was read"
        first = min(SETTLED, len(self.rss) - 1)
        memory = f"{self.rss[first] / 1e6:.1f} MB, at the end {self.rss[-1] / 1e6:.1f}"
        return f"{memory}; {self.descriptors[first]} descriptors, at the end {self.descriptors[-1]}"

    def leaks(self) -> bool:
        """Return whether it grew by more than the bounds."""
        memory, descriptors = self.growth()
        return memory > GROWTH_BYTES or descriptors > GROWTH_DESCRIPTORS


def kinds(total: int) -> Iterator[str]:
    """Yield the kind of each request: the same ones in each run, spread evenly."""
    for index in range(total):
        if index % round(1 / BAD) == round(0.5 / BAD):
            yield "bad"
        elif index % round(1 / CANCELLED) == 7:
            yield "cancelled"
        else:
            yield "good"


def body_of(kind: str, model: str, index: int, tokens: int = TOKENS) -> dict[str, object]:
    """Return a request's body. The server has to refuse a bad one."""
    question = f"Question {index}: what comes after {index % 97}?"
    return {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": -1 if kind == "bad" else tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def ask(client: httpx.AsyncClient, kind: str, body: dict[str, object], counts: Counts) -> None:
    """Send one request and count how it ended."""
    began, wanted = time.monotonic(), body["max_tokens"]
    finish, tokens, pieces = None, 0, 0
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            if 400 <= reply.status_code < 500 and kind == "bad":
                counts.refused += 1
                return
            if reply.status_code != 200 or kind == "bad":
                counts.lost.append(f"{kind}: HTTP {reply.status_code}")
                return
            async for line in reply.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    counts.lost.append(f"{kind}: an error in the stream")
                    return
                pieces += 1
                if pieces == 1:
                    counts.first_piece_s.append(time.monotonic() - began)
                if kind == "cancelled" and pieces > 1:
                    counts.cancelled += 1
                    return
                finish = next((one["finish_reason"] for one in chunk["choices"] if one["finish_reason"]), finish)
                tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
    except httpx.TimeoutException:
        counts.lost.append(f"{kind}: no more within {REQUEST_S:.0f} s after {pieces} pieces")
        return
    except httpx.HTTPError:
        counts.lost.append(f"{kind}: broken off after {pieces} pieces")
        return
    except (ValueError, KeyError):
        counts.lost.append(f"{kind}: a piece that is not vLLM's")
        return
    if kind == "good" and finish == "length" and tokens == wanted:
        counts.answered += 1
        counts.whole_s.append((began, time.monotonic() - began))
    else:
        counts.lost.append(f"{kind}: ended with {finish} after {tokens} tokens")


async def load(
    address: str,
    model: str,
    *,
    total: int,
    together: int,
    counts: Counts,
    tokens: int = TOKENS,
    seconds: float = math.inf,
) -> None:
    """Send all requests, so many at a time, and none after so many seconds."""
    ends = time.monotonic() + seconds
    queue = enumerate(itertools.takewhile(lambda _: time.monotonic() < ends, kinds(total)))
    limits = httpx.Limits(max_connections=together, max_keepalive_connections=together)
    async with httpx.AsyncClient(base_url=address, timeout=REQUEST_S, limits=limits, trust_env=False) as client:

        async def one_client() -> None:
            for index, kind in queue:
                counts.kinds[kind] += 1
                await ask(client, kind, body_of(kind, model, index, tokens), counts)

        await asyncio.gather(*(one_client() for _ in range(together)))


async def keep_sampling(processes: dict[str, psutil.Process], kept: dict[str, Kept]) -> None:
    """Read memory and descriptors until cancelled."""
    while True:
        for name, process in processes.items():
            kept[name].rss.append(process.memory_info().rss)
            kept[name].descriptors.append(process.num_fds())
        await asyncio.sleep(SAMPLE_S)


async def settled(address: str, *, seconds: float = 60) -> bool:
    """Return whether the server has no request left, waiting for the last cancelled ones."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if not gauge(address, "vllm:num_requests_running") + gauge(address, "vllm:num_requests_waiting"):
            return True
        await asyncio.sleep(1)
    return False


async def run(options: argparse.Namespace, folder: Path) -> int:
    """Load the stack, print what happened, and return the exit code."""
    cli = [sys.executable, "-m", "gemmaspec"]
    status = json.loads(subprocess.run([*cli, "status", options.name, "--json"], stdout=subprocess.PIPE).stdout)
    stack = status["stacks"][0]
    address, model = stack["address"].removesuffix("/v1"), stack["model"]
    words = ["answers", f"--port={stack['port']}", f"--model={model}", f"--state={folder / 'health'}", "--deadline=15"]
    counts = Counts()
    server, beside = processes(stack)
    commands = {"watch": ["watch", options.name, "--json"], "top": ["top", options.name, "--json"]}
    with (folder / "watch").open("w") as told, (folder / "top").open("w") as shown:
        started = {
            name: subprocess.Popen([*cli, *words], stdout=out)
            for (name, words), out in zip(commands.items(), (told, shown), strict=True)
        }
        seen = {name: psutil.Process(one.pid) for name, one in started.items()}
        seen |= {f"watch in its container, {one.pid}": one for one in beside}
        kept = {name: Kept() for name in seen}
        checking = Checking(address, words, options.check_every, options.block, server)
        around = [asyncio.create_task(keep_sampling(seen, kept)), asyncio.create_task(checking.run())]
        began = time.monotonic()
        try:
            await load(
                address, model, total=options.requests, together=options.together, counts=counts,
                tokens=options.tokens, seconds=options.seconds,
            )  # fmt: skip
            took = time.monotonic() - began
            empty = await settled(address)
        finally:
            died = [name for name, one in started.items() if one.poll() is not None]
            for task in around:
                task.cancel()
            for process in started.values():
                process.terminate()
    events = [json.loads(line) for line in (folder / "watch").read_text().splitlines()]
    print(f"{counts.total} of {options.requests} requests of {options.tokens} tokens in {took:.0f} s, ", end="")
    print(f"{options.together} at a time:")
    tell(counts, kept)
    checking.tell(counts.whole_s)
    print(f"  watch said: {[(one['what'], one['fault']) for one in events]}")
    print(f"  requests left in the server: {'none' if empty else 'SOME'}; ended by themselves: {died or 'none'}")
    leaks = [name for name, one in kept.items() if one.leaks()]
    return int(bool(counts.lost or leaks or died) or not empty or counts.total != counts.kinds.total())


def processes(stack: Mapping[str, Any]) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Return the processes of a server on this machine, and the one of the watch in its container, if there is one."""
    if stack["engine"] == "docker":
        found = {service: of_container(f"gemmaspec-{stack['name']}", service) for service in ("vllm", "watch")}
        return found["vllm"], found["watch"][-1:]
    listens = next(
        one.pid for one in psutil.net_connections("tcp") if one.status == "LISTEN" and one.laddr.port == stack["port"]
    )
    return [psutil.Process(listens), *psutil.Process(listens).children(recursive=True)], []


def of_container(project: str, service: str) -> list[psutil.Process]:
    """Return the processes of a service's container, from its first on; none where there is no such container."""
    ids = subprocess.run(
        ["docker", "compose", "-p", project, "ps", "-q", service], stdout=subprocess.PIPE, text=True, check=False
    ).stdout.split()
    if not ids:
        return []
    asked = ["docker", "inspect", "--format", "{{.State.Pid}}", *ids]
    first = psutil.Process(int(subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True).stdout))
    return [first, *first.children(recursive=True)]


def tell(counts: Counts, kept: Mapping[str, Kept]) -> None:
    """Print how requests ended, and what the processes around them hold."""
    lost = len(counts.lost)
    print(f"  {counts.answered} answered, {counts.cancelled} cancelled, {counts.refused} refused, {lost} lost")
    for what, times in collections.Counter(counts.lost).most_common(10):
        print(f"    {times} x {what}")
    whole = [seconds for _, seconds in counts.whole_s]
    for name, values in (("first piece", counts.first_piece_s), ("whole answer", whole)):
        print(f"  {name}: median {quantile(values, 0.5):.2f} s, p99 {quantile(values, 0.99):.2f} s")
    for name, one in kept.items():
        memory, descriptors = one.growth()
        print(f"  {name}: {one.held()}; growth {memory / 1e6:+.1f} MB, {descriptors:+.0f} descriptors")


def main(arguments: Sequence[str]) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="a started stack")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--together", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each answer")
    parser.add_argument("--seconds", type=float, default=math.inf, help="send none after so long")
    parser.add_argument("--check-every", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--block", type=float, default=20.0, metavar="SECONDS", help="with the checks, then without")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(options, Path(folder)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
