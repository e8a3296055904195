"""Measure the commands about speed themselves: predict, compare, and what bench adds between two requests.

vLLM is a fake that streams one chunk each 10 ms, as a target of some 30B does on a fast GPU.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.fake_vllm import fake_vllm

ROOT = Path(__file__).parent.parent
TIMES = 9
LIMIT_S = 0.5
STEP_S = 0.010
CELLS = ROOT / "measurements" / "h200-31b-nvfp4-0.32.0.json"


def speed() -> Iterator[tuple[str, str, str]]:
    """Yield the time of each command, and the overhead and size of a run of bench."""
    grid = ("--k", "0,1,2,4,8", "--concurrency", "1,2,4,8", "--json")
    cells = f"from {len(json.loads(CELLS.read_text())['rows'])} measured cells"
    yield _timed("predict", cells, "nvidia-31b-mtp", "--machine", "h200", "--measured", str(CELLS), *grid)
    yield _timed("predict", "by roofline: two published models", "spark-31b-e2b", *grid)
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder) / "a", Path(folder) / "b"
        for out in (first, second):
            _bench(out)
        yield _timed("compare", "two results of 6 cells", str(first), str(second), "--tolerance", "100%")
        overhead = max(cell["overhead"] for cell in json.loads((first / "result.json").read_text())["cells"])
        size = (first / "report.html").stat().st_size
    yield "`bench`: its client between two requests", f"{overhead:.3%}", "largest of 6 cells; at most 1 % of the run"
    yield "`bench`: report.html", f"{size / 1000:.0f} kB", "6 cells; at most 500 kB"


def _timed(command: str, detail: str, *arguments: str) -> tuple[str, str, str]:
    """Return the row of one whole command: the median, the least, and its CPU seconds."""
    walls, processors = zip(*[_seconds([command, *arguments]) for _ in range(TIMES)], strict=True)
    wall = statistics.median(walls)
    more = f"{detail}; least {min(walls):.2f} s, {statistics.median(processors):.2f} s of CPU"
    return f"`{command}`, whole command", f"{wall:.2f} s", f"{more}; at most {LIMIT_S} s"


def _seconds(arguments: Sequence[str]) -> tuple[float, float]:
    before, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "gemmaspec", *arguments], check=True, capture_output=True)
    wall, after = time.perf_counter() - began, os.times()
    return wall, after.children_user + after.children_system - before.children_user - before.children_system


def _bench(out: Path) -> None:
    """Run bench against the fake, with and without speculation."""
    with fake_vllm() as fake:
        fake.step_s = STEP_S
        command = ["bench", "tiny-cpu", "--url", fake.url, "--k", str(fake.k), "--concurrency", "1,4,8"]
        options = ["--rounds", "2", "--each", "1", "--max-tokens", "64", "--repeats", "0", "--out", str(out)]
        subprocess.run([sys.executable, "-m", "gemmaspec", *command, *options], check=True, capture_output=True)


SUITES = {"speed": speed}
