"""Measure gemmaspec's own speed (`make bench`): ratios of two times from one run, printed as Markdown rows."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import bench_inspect
import bench_patches
import bench_speed

ROOT = Path(__file__).parent.parent
STATE = ROOT / ".tools" / "state"
IMAGE = "gemmaspec/vllm-cpu:0.32.0"
PORT = 8378
PYTHON = sys.executable
ROUNDS = 9
LINT = "profile lint"
AGAINST = (
    ("--version", "import typer", 2),
    ("render", "import typer", 4),
    ("fit tiny-cpu", "import typer", 4),
    ("up tiny-cpu --dry-run", "import typer", 4),
    ("status", "profile list", 2),
    ("doctor", "profile list", 2),
)
"""Commands, what each is compared with, and how many times as long it may take."""
PAIRS = 2
"""Number of comparisons of `up` with `docker run`; each takes about half a minute."""


def median(run: Callable[[], float], *, times: int) -> float:
    """Return the median of several timed runs, after a warm-up run."""
    run()
    return statistics.median(run() for _ in range(times))


def seconds(command: Sequence[str], **options: object) -> float:
    """Return the wall-clock seconds of one whole process."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, **options)  # type: ignore[call-overload]
    return time.perf_counter() - began


def processor(command: Sequence[str], environment: dict[str, str]) -> float:
    """Return the CPU seconds of one whole process, which other work on the machine changes less than its wall clock."""
    before = _used()
    subprocess.run(command, check=False, capture_output=True, env=environment)
    return _used() - before


def _used() -> float:
    """Return the CPU seconds of all programs that have ended; os.times() counts them in hundredths only."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def cli() -> Iterator[tuple[str, str, str]]:
    """Yield the CPU time of commands against `import typer` and `profile list`: the least of several rounds."""
    environment = {**os.environ, "GEMMASPEC_STATE": str(STATE), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # nobody's modules are compiled at every start
    took: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        words = {name: name.split() for name, *_ in AGAINST} | {name: name.split() for name in ("profile list", LINT)}
        words["render"] = ["render", "spark-31b-e2b", "--out", folder]
        commands = {name: [PYTHON, "-m", "gemmaspec", *given] for name, given in words.items()}
        commands["import typer"] = [PYTHON, "-c", "import typer"]
        for _ in range(ROUNDS):
            for name, command in commands.items():
                took.setdefault(name, []).append(processor(command, environment))
    least = {name: min(values) for name, values in took.items()}
    for name, base, limit in AGAINST:
        detail = f"{ms(least[name])} / {ms(least[base])} of CPU"
        yield row(f"`gemmaspec {name}` against `{base}`", least[name] / least[base], limit, detail)
    yield row("`gemmaspec profile lint` over all shipped profiles", least[LINT], 1, "CPU, whole command", unit="s")


def fit() -> Iterator[tuple[str, str, str]]:
    """Yield the time of `fit` for the tiny pair, with local files only."""
    environment = {**os.environ, "GEMMASPEC_STATE": str(STATE), "HF_HUB_OFFLINE": "1"}
    value = median(lambda: seconds([PYTHON, "-m", "gemmaspec", "fit", "tiny-cpu"], env=environment), times=9)
    yield row("`gemmaspec fit tiny-cpu`, whole command", value, 0.5, "median of 9, without network", unit="s")


def overlay() -> Iterator[tuple[str, str, str]]:
    """Yield the launcher against a start-up script that edits files and runs pip, in one container."""
    rendered = STATE / "bench"
    subprocess.run(
        [PYTHON, "-m", "gemmaspec", "render", "tiny-cpu", "--out", str(rendered)], check=True, capture_output=True
    )
    script = ROOT / "tools" / "bench_in_container.py"
    pip = ["-v", f"{pip_folder()}:/opt/pip/pip:ro"]
    mounts = [*pip, "-v", f"{rendered}:/gemmaspec:ro", "-v", f"{script}:/bench.py:ro"]
    command = ["docker", "run", "--rm", "--network", "none", *mounts, "--entrypoint", "python3", IMAGE, "/bench.py"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    compared = "launcher up to exec, against the start-up script of mikeytag's card"
    for key, clock in (("", "of wall clock, medians"), ("_cpu", "of CPU, the least")):
        ours, theirs = found[f"launcher{key}"], found[f"script{key}"]
        yield row(compared, ours / theirs, 1 / 20, f"{ms(ours)} / {ms(theirs)} {clock}")
    yield row("overlay alone, milliseconds", found["overlay_ms"], 50, "from the report", unit="ms")


def pip_folder() -> Path:
    """Return the folder of this environment's pip, because the image has none and the compared script needs it."""
    import pip

    return Path(pip.__file__).parent


def starts() -> Iterator[tuple[str, str, str]]:
    """Yield the time of `up` until ready, compared with a plain `docker run` of the same server."""
    environment = {**os.environ, "GEMMASPEC_STATE": str(STATE)}
    up = [PYTHON, "-m", "gemmaspec", "up", "tiny-cpu", "--engine", "docker", "--json", "--set", f"serve.port={PORT}"]
    down = [PYTHON, "-m", "gemmaspec", "down", "tiny-cpu"]

    def timed_up() -> float:
        taken = seconds(up, env=environment)
        subprocess.run(down, check=True, capture_output=True, env=environment)
        return taken

    def timed_run() -> float:
        return plain_docker_run(environment)

    timed_up()
    pairs = [(timed_up(), timed_run()) for _ in range(PAIRS)]
    extra = statistics.median(ours - plain for ours, plain in pairs)
    detail = ", ".join(f"{ours:.1f} / {plain:.1f}" for ours, plain in pairs)
    yield row("`up` to ready, beyond `docker run` to the first answer, seconds", extra, 3, detail, unit="s")


def plain_docker_run(environment: dict[str, str]) -> float:
    """Return the time of `docker run` until the first chat answer, with the stack that `up` rendered."""
    stack = STATE / "stacks" / "tiny-cpu"
    config = subprocess.run(
        ["docker", "compose", "-f", str(stack / "compose.yaml"), "config", "--format", "json"],
        check=True, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    service = json.loads(config.stdout)["services"]["vllm"]
    command = ["docker", "run", "-d", "--name", "gemmaspec-bench", "--read-only", "--shm-size", "1g"]
    command += [
        "--tmpfs",
        "/run/gemmaspec:mode=1777",
        "--tmpfs",
        "/tmp:mode=1777,exec",
        "-p",
        f"127.0.0.1:{PORT}:{PORT}",
    ]
    for key, value in service["environment"].items():
        command += ["-e", f"{key}={value or ''}"]
    for mount in service["volumes"]:
        source = f"gemmaspec-tiny-cpu_{mount['source']}" if mount["type"] == "volume" else mount["source"]
        command += ["-v", f"{source}:{mount['target']}" + (":ro" if mount.get("read_only") else "")]
    command += [
        "--entrypoint",
        service["entrypoint"][0],
        service["image"],
        *service["entrypoint"][1:],
        *service["command"],
    ]
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    try:
        first_answer()
        return time.perf_counter() - began
    finally:
        subprocess.run(["docker", "rm", "-f", "gemmaspec-bench"], check=True, capture_output=True)


def first_answer() -> None:
    """Send chat requests until one is answered."""
    import httpx

    body = {"model": "tiny", "messages": [{"role": "user", "content": "Count from 1 to 20."}], "max_tokens": 48}
    for _ in range(1200):
        try:
            if httpx.post(f"http://127.0.0.1:{PORT}/v1/chat/completions", json=body, timeout=60).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise TimeoutError("the plain server did not answer")


def row(what: str, value: float, limit: float, detail: str, *, unit: str = "") -> tuple[str, str, str]:
    """Return one line of the table."""
    return what, f"{value:.3g}{' ' + unit if unit else ''}", f"{detail}; at most {limit:.3g}"


def ms(value: float) -> str:
    """Return seconds as text in milliseconds."""
    return f"{value * 1000:.0f} ms"


SUITES = {
    "cli": cli,
    "overlay": overlay,
    "starts": starts,
    "fit": fit,
    **bench_speed.SUITES,
    **bench_patches.SUITES,
    **bench_inspect.SUITES,
}


def main() -> int:
    """Run the chosen suites."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[[], *SUITES], help="default: all")
    chosen = parser.parse_args().suites or list(SUITES)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine}\n")
    print("| what | measured | detail |\n|---|---|---|")
    for name in chosen:
        for cells in SUITES[name]():
            print("| " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
