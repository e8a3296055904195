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
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

ROOT = Path(__file__).parent.parent
CANCELLED, BAD = 0.05, 0.01
TOKENS = 32
REQUEST_S = 600.0
GROWTH_BYTES = 24 * 1024**2
GROWTH_DESCRIPTORS = 8
SAMPLE_S = 2.0
SETTLED = 10
"""Samples after which a process that has just begun has imported what it needs."""
SHIPPED_S = 30.0
"""How often compose.yaml has the health check run."""


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


@dataclass(frozen=True)
class Block:
    """A part of the run, with the health checks or without."""

    checked: bool
    began: float
    """By the monotonic clock."""
    seconds: float
    tokens: float

    @property
    def rate(self) -> float:
        """Return tokens per second."""
        return self.tokens / self.seconds


def cost(blocks: Sequence[Block]) -> tuple[float, float, int]:
    """Return by what share the checks lower the throughput, the standard error of that, and the number of comparisons.

    Each block is compared with the mean of its two neighbours, of the other kind, so that a slow drift cancels out.
    """
    shares = []
    for before, block, after in zip(blocks, blocks[1:], blocks[2:], strict=False):
        around = (before.rate + after.rate) / 2
        if around and block.rate:
            shares.append(1 - block.rate / around if block.checked else 1 - around / block.rate)
    if len(shares) < 2:
        return math.nan, math.nan, len(shares)
    # Two comparisons that are next to each other share blocks, so only every second one counts as independent.
    return statistics.mean(shares), statistics.stdev(shares) / math.sqrt(len(shares) / 2), len(shares)


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


async def check(words: Sequence[str], checks: list[tuple[float, int]]) -> None:
    """Run the health check of a container once; note seconds and exit code."""
    probe = ROOT / "gemmaspec" / "launcher" / "probe.py"
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-IS", str(probe), *words, stdout=asyncio.subprocess.DEVNULL
    )
    code = await process.wait()
    checks.append((time.monotonic() - began, code))


async def keep_checking(
    address: str,
    words: Sequence[str],
    *,
    every_s: float,
    block_s: float,
    blocks: list[Block],
    checks: list[tuple[float, int]],
) -> None:
    """Run the health check for a block, rest for a block, and note what the server made in each, until cancelled."""
    checked = True
    while True:
        began, tokens = time.monotonic(), await made(address)
        while (left := began + block_s - time.monotonic()) > 0:
            if checked:
                await check(words, checks)
            await asyncio.sleep(min(every_s, max(0.0, left)) if checked else left)
        seconds, now = time.monotonic() - began, await made(address)
        blocks.append(Block(checked=checked, began=began, seconds=seconds, tokens=now - tokens))
        checked = not checked


async def made(address: str) -> float:
    """Return the tokens that the server has generated so far."""
    return await asyncio.to_thread(gauge, address, "vllm:generation_tokens_total")


def gauge(address: str, name: str) -> float:
    """Return the sum of a metric's samples."""
    page = httpx.get(f"{address}/metrics", trust_env=False, timeout=10).text
    return sum(
        float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} "))
    )


async def settled(address: str, *, seconds: float = 60) -> bool:
    """Return whether the server has no request left, waiting for the last cancelled ones."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if not gauge(address, "vllm:num_requests_running") + gauge(address, "vllm:num_requests_waiting"):
            return True
        await asyncio.sleep(1)
    return False


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of measured values; 0 without any."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


async def run(options: argparse.Namespace, folder: Path) -> int:
    """Load the stack, print what happened, and return the exit code."""
    cli = [sys.executable, "-m", "gemmaspec"]
    status = json.loads(subprocess.run([*cli, "status", options.name, "--json"], stdout=subprocess.PIPE).stdout)
    stack = status["stacks"][0]
    address, model = stack["address"].removesuffix("/v1"), stack["model"]
    words = ["answers", f"--port={stack['port']}", f"--model={model}", f"--state={folder / 'health'}", "--deadline=15"]
    counts, checks, blocks = Counts(), list[tuple[float, int]](), list[Block]()
    commands = {"watch": ["watch", options.name, "--json"], "top": ["top", options.name, "--json"]}
    with (folder / "watch").open("w") as told, (folder / "top").open("w") as shown:
        started = {
            name: subprocess.Popen([*cli, *words], stdout=out)
            for (name, words), out in zip(commands.items(), (told, shown), strict=True)
        }
        seen = {name: psutil.Process(one.pid) for name, one in started.items()}
        seen |= {f"process {pid}": psutil.Process(pid) for pid in options.pid}
        kept = {name: Kept() for name in seen}
        checking = keep_checking(
            address, words, every_s=options.check_every, block_s=options.block, blocks=blocks, checks=checks
        )
        around = [asyncio.create_task(keep_sampling(seen, kept)), asyncio.create_task(checking)]
        began, cpu = time.monotonic(), cpu_of_children()
        try:
            await load(
                address, model, total=options.requests, together=options.together, counts=counts,
                tokens=options.tokens, seconds=options.seconds,
            )  # fmt: skip
            took, cpu = time.monotonic() - began, cpu_of_children() - cpu
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
    tell_checks(counts, checks, blocks, cpu_s=cpu, every_s=options.check_every)
    print(f"  watch said: {[(one['what'], one['fault']) for one in events]}")
    print(f"  requests left in the server: {'none' if empty else 'SOME'}; ended by themselves: {died or 'none'}")
    leaks = [name for name, one in kept.items() if one.leaks()]
    return int(bool(counts.lost or leaks or died) or not empty or counts.total != counts.kinds.total())


def cpu_of_children() -> float:
    """Return the seconds of processor time of the children that have ended: the health checks."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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


def tell_checks(
    counts: Counts, checks: Sequence[tuple[float, int]], blocks: Sequence[Block], *, cpu_s: float, every_s: float
) -> None:
    """Print how the health checks ended, and what the blocks with them differ in from those without."""
    failed = sum(code != 0 for _, code in checks)
    took = [seconds for seconds, _ in checks]
    print(f"  health check: {len(checks)} times, p99 {quantile(took, 0.99):.2f} s, {failed} failed, ", end="")
    print(f"{1000 * cpu_s / max(1, len(checks)):.0f} ms of processor time each")
    for checked in (True, False):
        spans = [(one.began, one.began + one.seconds) for one in blocks if one.checked is checked]
        inside = [took for at, took in counts.whole_s if any(began <= at < ended for began, ended in spans)]
        rates = [one.rate for one in blocks if one.checked is checked]
        word = f"with a check every {every_s:g} s" if checked else "without"
        if rates:
            print(f"    {word}: {statistics.mean(rates):.1f} tokens/s in {len(rates)} blocks; whole answer: ", end="")
            print(f"median {quantile(inside, 0.5):.3f} s, p99 {quantile(inside, 0.99):.3f} s of {len(inside)}")
    share, error, compared = cost(blocks)
    scale = every_s / SHIPPED_S
    print(f"    cost: {share:+.2%} of the throughput, standard error {error:.2%} ({compared} comparisons); ", end="")
    print(f"for a check every {SHIPPED_S:g} s that is {share * scale:+.3%}, standard error {error * scale:.3%}")


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
    parser.add_argument("--pid", type=int, action="append", default=[], help="another process to look at; repeatable")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(options, Path(folder)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
