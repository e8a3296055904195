"""What the health check of a container costs a server under load: in every second block of a run it is made often.

Neighbouring blocks are compared, so that a slow drift of the machine cancels out. There are two measures: seconds per
token, which other work on the machine disturbs, and processor seconds of the server per token, which it disturbs less.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

PROBE = Path(__file__).parent.parent / "gemmaspec" / "core" / "launcher" / "probe.py"
SHIPPED_S = 30.0
"""How often compose.yaml has the health check run."""


@dataclass(frozen=True)
class Block:
    """A part of the run, with the health checks or without."""

    checked: bool
    began: float
    """By the monotonic clock."""
    seconds: float
    tokens: float
    cpu_s: float = 0.0
    """Processor time of the server's processes."""


def cost(blocks: Sequence[Block], measure: Callable[[Block], float]) -> tuple[float, float, int]:
    """Return by what share a measure is higher with the checks, the standard error, and the number of comparisons."""
    shares = []
    for before, block, after in zip(blocks, blocks[1:], blocks[2:], strict=False):
        if not all(one.tokens and measure(one) for one in (before, block, after)):
            continue
        ratio = measure(block) / ((measure(before) + measure(after)) / 2)
        shares.append(ratio - 1 if block.checked else 1 / ratio - 1)
    if len(shares) < 2:
        return math.nan, math.nan, len(shares)
    # Two comparisons that are next to each other share blocks, so only every second one counts as independent.
    return statistics.mean(shares), statistics.stdev(shares) / math.sqrt(len(shares) / 2), len(shares)


@dataclass
class Checking:
    """The health checks of one run."""

    address: str
    words: Sequence[str]
    """The arguments of the probe."""
    every_s: float
    block_s: float
    server: Sequence[psutil.Process]
    blocks: list[Block] = field(default_factory=list)
    checks: list[tuple[float, int]] = field(default_factory=list)
    """How long each check took, and its exit code."""
    spent_s: float = 0.0
    """Processor time of the checks themselves."""

    async def run(self) -> None:
        """Check for a block, rest for a block, until cancelled."""
        checked = True
        while True:
            with contextlib.suppress(httpx.HTTPError):  # a server that is too busy to say: this block is not compared
                await self._block(checked=checked)
            checked = not checked

    async def _block(self, *, checked: bool) -> None:
        tokens = await self._tokens()
        began, cpu_s = time.monotonic(), self._cpu()
        while (left := began + self.block_s - time.monotonic()) > 0:
            if checked:
                await self._check()
            await asyncio.sleep(min(self.every_s, max(0.0, left)) if checked else left)
        made = await self._tokens() - tokens
        seconds, cpu_s = time.monotonic() - began, self._cpu() - cpu_s
        self.blocks.append(Block(checked=checked, began=began, seconds=seconds, tokens=made, cpu_s=cpu_s))

    async def _check(self) -> None:
        began, before = time.monotonic(), _of_children()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-IS", str(PROBE), *self.words, stdout=asyncio.subprocess.DEVNULL
        )
        code = await process.wait()
        self.checks.append((time.monotonic() - began, code))
        self.spent_s += _of_children() - before

    async def _tokens(self) -> float:
        return await asyncio.to_thread(gauge, self.address, "vllm:generation_tokens_total")

    def _cpu(self) -> float:
        return sum(times.user + times.system for times in (one.cpu_times() for one in self.server))

    def tell(self, answers: Sequence[tuple[float, float]]) -> None:
        """Print how the checks ended, and what the blocks with them differ in; answers are when, and how long."""
        failed = sum(code != 0 for _, code in self.checks)
        took = [seconds for seconds, _ in self.checks]
        each = 1000 * self.spent_s / max(1, len(self.checks))
        print(f"  health check: {len(self.checks)} times, p99 {quantile(took, 0.99):.2f} s, {failed} failed, ", end="")
        print(f"{each:.0f} ms of processor time each")
        for checked in (True, False):
            mine = [one for one in self.blocks if one.checked is checked]
            inside = [took for at, took in answers if any(0 <= at - one.began < one.seconds for one in mine)]
            rate = sum(one.tokens for one in mine) / (sum(one.seconds for one in mine) or 1)
            word = f"with a check every {self.every_s:g} s" if checked else "without"
            print(f"    {word}: {rate:.1f} tokens/s in {len(mine)} blocks; whole answer: ", end="")
            print(f"median {quantile(inside, 0.5):.3f} s, p99 {quantile(inside, 0.99):.3f} s of {len(inside)}")
        checked_s = sum(one.seconds for one in self.blocks if one.checked)
        scale = checked_s / max(1, len(self.checks)) / SHIPPED_S
        for what, measure in (("seconds", _seconds), ("processor seconds of the server", _processor)):
            share, error, compared = cost(self.blocks, measure)
            print(f"    {what} per token: {share:+.2%}, standard error {error:.2%} ({compared} comparisons); ", end="")
            print(f"with a check every {SHIPPED_S:g} s {share * scale:+.3%}, {error * scale:.3%}")


def _seconds(block: Block) -> float:
    return block.seconds / block.tokens


def _processor(block: Block) -> float:
    return block.cpu_s / block.tokens


def _of_children() -> float:
    """Return the seconds of processor time of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def gauge(address: str, name: str) -> float:
    """Return the sum of a metric's samples."""
    page = httpx.get(f"{address}/metrics", trust_env=False, timeout=10).text
    return sum(
        float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} "))
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of measured values; 0 without any."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0
