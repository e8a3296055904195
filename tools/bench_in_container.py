"""Measure the launcher and an equivalent start-up script in the CPU image, for tools/bench.py.

The script makes the two text edits and the pip check of mikeytag's model card, on copies of the two files and without
the network: transformers is installed, so pip only has to detect that.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 9
PIP = {"PYTHONPATH": "/opt/pip", "PIP_BREAK_SYSTEM_PACKAGES": "1"}
"""The mounted pip, with permission to inspect Debian's own Python."""
FILES = ("v1/core/kv_cache_utils.py", "v1/worker/utils.py")
EDIT = """
from pathlib import Path
import sys
for name in sys.argv[1:]:
    path = Path(name)
    text = path.read_text()
    old = "except AssertionError:\\n        return False"
    new = "except (AssertionError, ValueError):\\n        return False"
    if old in text and new not in text:
        path.write_text(text.replace(old, new, 1))
"""


def clocks() -> tuple[float, float]:
    """Return wall-clock seconds, and the CPU seconds of all programs that have ended, to subtract from a later call."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), used.ru_utime + used.ru_stime


def since(began: tuple[float, float]) -> tuple[float, float]:
    """Return the wall-clock seconds and the CPU seconds since `began`."""
    wall, processor = clocks()
    return wall - began[0], processor - began[1]


def launcher(folder: str) -> tuple[float, float]:
    """Return the wall-clock and CPU seconds of the launcher, from its start until it becomes another program."""
    options = ["--plan", "/gemmaspec/plan.json", "--run-dir", f"{folder}/run", "--cache-dir", f"{folder}/cache"]
    began = clocks()
    subprocess.run([sys.executable, "/gemmaspec/launch.py", *options, "--", "true"], check=True, capture_output=True)
    return since(began)


def script(files: list[str]) -> tuple[float, float]:
    """Return the wall-clock and CPU seconds of pip and of Python with the edits, run as by a shell script."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "transformers>=5.5.0"]
    began = clocks()
    subprocess.run(pip, check=True, capture_output=True, env={**os.environ, **PIP})
    subprocess.run([sys.executable, "-c", EDIT, *files], check=True, capture_output=True)
    return since(began)


def main() -> None:
    """Run both alternately and print the medians as one line of JSON."""
    (package,) = importlib.util.find_spec("vllm").submodule_search_locations  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory() as folder:
        copies = [shutil.copy(Path(package) / name, Path(folder) / name.replace("/", "-")) for name in FILES]
        rounds = [(launcher(folder), script([str(copy) for copy in copies])) for _ in range(ROUNDS)]
        report = json.loads((Path(folder) / "run" / "report.json").read_text())
    ours, theirs = zip(*rounds, strict=True)
    found = {
        "launcher": statistics.median(wall for wall, _ in ours),
        "script": statistics.median(wall for wall, _ in theirs),
        "launcher_cpu": min(processor for _, processor in ours),
        "script_cpu": min(processor for _, processor in theirs),
        "overlay_ms": report["overlay_ms"],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
