"""Measure what patches for speed buy here: the same calls on the released vLLM and on the patched one, in turns.

    python3 measuring.py    # reads job.json beside it, and launch.py; the last line on stderr is the result, as JSON

gemmaspec puts it into a folder with those files, the cases of the patches and the modules that they share, and runs it
in the Python of an image or a runtime. Each tree has a process, a session and a home of its own. Both run a call, their
values are compared, and then each is timed, one after the other, several times. A process says what it computed
through a pipe of its own. What it prints, or writes anywhere, is not a result: only this process writes that, after it
has ended every process that the patched code may have started.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import math
import os
import resource
import runpy
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TURNS = 3  # times that each side is timed; the median counts
LAUNCHES = 20  # in a timing, and in a CUDA graph
WARM = 3  # launches before it
REPLAYS = 5  # of a graph in a timing
GRACE_S, LONGER = 60.0, 10  # how long the patched tree may compute in addition to so many times the released one
LONG_MS = 50.0  # launches in a timing take together no more than this, unless one alone does
MOST_VALUES = 4 * 1024 * 1024  # of a case; a prompt computes 33 million for a layer of the 31B
MOST_BYTES = 4 * MOST_VALUES  # of values, and of anything else that a side says
MOST_FILE = 4 * 2**30  # bytes of a file that a side writes, as a Triton cache
MOST_CASES = 64
LOOSEST = 0.25  # the largest share of a value by which sides may differ, as FP8 needs it
DESCRIBED = ("name", "part", "load", "times", "bound")  # of a case; "make" returns the call
PARENT_DEATH, SUBREAPER = 1, 36  # of prctl
KEPT = (
    "PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH", "TRITON_LIBCUDA_PATH",
)  # fmt: skip


class Refused(Exception):
    """A patch was not measured to its end: `state` says how, and `side` which tree it was."""

    def __init__(self, state: str, side: str, detail: str) -> None:
        super().__init__(detail)
        self.state, self.side, self.detail = state, side, detail


# The process that compares


def main() -> int:
    """Measure every patch of the job and write the result."""
    said = os.dup(2)  # kept from the sides, which have pipes and files in place of it
    os.set_inheritable(said, False)
    job = json.loads((HERE / "job.json").read_text(encoding="utf-8"))
    _adopt_orphans()
    answer: dict[str, Any] = {"schema": 1, "results": []}
    try:
        import launch  # type: ignore[import-not-found,unused-ignore]

        job["paths"] = [*job.get("paths", ()), *launch.clean_search_path()]
        package = launch.locate_vllm()
        answer["vllm"] = launch.vllm_version(package)
        answer["place"] = launch.place()
        for patch in job["patches"]:
            answer["results"].append(_measured(launch, package, patch, job))
    except Exception as error:
        answer["problem"] = _line(error)
    _end_orphans()
    os.write(said, b"\n" + json.dumps(answer).encode() + b"\n")
    return 0 if answer["results"] else 1


def _measured(launch: Any, package: Path, patch: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured of one patch; every fault is a state of the result."""
    cases: list[dict[str, Any]] = []
    state, side, detail = "measured", "", ""
    try:
        with tempfile.TemporaryDirectory(prefix="gemmaspec-measure-") as place:
            trees = _trees(launch, package, patch, Path(place))
            _compare(trees, patch, job, Path(place), cases)
    except Refused as refused:
        state, side, detail = refused.state, refused.side, refused.detail
    except Exception as error:
        state, detail = "failed", _line(error)
    _end_orphans()
    return {"patch": patch["id"], "state": state, "side": side, "detail": detail, "cases": cases}


def _trees(launch: Any, package: Path, patch: dict[str, Any], place: Path) -> dict[str, list[str]]:
    """Return what comes first on the path of each side: nothing, or an overlay."""
    trees = {}
    for side, names in (("released", patch["base"]), ("patched", [*patch["base"], *patch["own"]])):
        entries = tuple(launch.build(launch.Patch, entry, "patch") for entry in names)
        plan = launch.Plan(1, "", "", (), entries, "")
        results, changed = launch.decide_plan(plan, launch.vllm_version(package), launch.read_from(package))
        unfit = [result for result in results if result.state != "applies"]
        if unfit:
            raise Refused("unfit", side, f"{unfit[0].patch.id}: {unfit[0].state}")
        folder = place / side
        folder.mkdir()
        overlay = launch.build_overlay(package, folder, changed)
        trees[side] = [str(overlay)] if overlay else []
    return trees


def _compare(
    trees: dict[str, list[str]], patch: dict[str, Any], job: dict[str, Any], place: Path, cases: list[dict[str, Any]]
) -> None:
    """Run every case on both sides; each that was measured is added to `cases`. Raise Refused."""
    file, ends = HERE / "patches" / patch["id"] / "cases.py", time.monotonic() + patch["seconds"]
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(Side(name, path, file, job, place, ends)) for name, path in trees.items()]
        described = [side.cases() for side in sides]
        if described[0] != described[1]:
            raise Refused("wrong", "patched", "both trees describe other cases")
        if not described[0]:
            raise Refused("idle", "", "")
        for number, case in enumerate(described[0]):
            case["off"] = _apart(case, *_in_turn(sides, Side.values, number))
            turns = [_in_turn(sides, Side.milliseconds, number) for _ in range(TURNS)]
            case["released"], case["patched"] = [turn[0] for turn in turns], [turn[1] for turn in turns]
            cases.append(case)


def _in_turn(sides: Sequence[Side], ask: Callable[[Side, int], Any], number: int) -> tuple[Any, Any]:
    """Return the answers of both sides; the patched one must answer not much later than the released one did."""
    released, patched = sides
    began = time.monotonic()
    first = ask(released, number)
    now = time.monotonic()
    patched.within(GRACE_S + LONGER * (now - began))
    return first, ask(patched, number)


def _apart(case: dict[str, Any], released: array.array[float], patched: array.array[float]) -> float:
    """Return by which share of the largest value two sides differ. Raise Refused if it is more than the bound."""
    if len(released) != len(patched):
        raise Refused("wrong", "patched", f"{case['name']}: {len(patched)} values, and {len(released)} as released")
    largest = max(map(abs, released))
    if not 0 < largest < math.inf:
        raise Refused("failed", "released", f"{case['name']}: the released values cannot be compared with")
    off = 0.0
    for one, other in zip(released, patched, strict=True):
        apart = abs(one - other)
        if not apart <= off:  # NaN is not
            off = apart
            if math.isnan(apart):
                break
    if not off / largest <= case["bound"]:
        what = f"{off / largest:.1e} off, where {case['bound']:.1e} is rounding"
        raise Refused("wrong", "patched", f"{case['name']}: {what}")
    return off / largest


class Side(contextlib.AbstractContextManager["Side"]):
    """The process of one tree, in a session of its own."""

    def __init__(
        self, name: str, path: Sequence[str], file: Path, job: dict[str, Any], place: Path, ends: float
    ) -> None:
        self.name, self.ends, self.until = name, ends, ends
        home = place / f"{name}-home"
        home.mkdir()
        self.log = home / "log"
        environment = {key: os.environ[key] for key in KEPT if key in os.environ} | {
            "HOME": str(home), "TMPDIR": str(home), "TRITON_CACHE_DIR": str(home / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"), "VLLM_CACHE_ROOT": str(home / "vllm"),
            "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_PLUGINS": "", "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join([*path, *job["paths"]]), "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        self.answers, told = os.pipe()
        try:
            with self.log.open("wb") as log:
                self.process = subprocess.Popen(
                    [sys.executable, str(Path(__file__).resolve()), "--side", str(told), str(file)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=(told,),
                    cwd=home,
                    env=environment,
                    start_new_session=True,
                )
        finally:
            os.close(told)
        self._ask({**job["job"], "seconds": max(1, int(ends - time.monotonic()) + 1)})

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.answers)
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()

    def within(self, seconds: float) -> None:
        """Set how long the next answer may take."""
        self.until = time.monotonic() + seconds

    def cases(self) -> list[dict[str, Any]]:
        """Return how it describes its cases. Raise Refused if it does not, or not as a case is described."""
        cases = self._answer().get("cases")
        if not isinstance(cases, list) or len(cases) > MOST_CASES or not all(map(_is_case, cases)):
            raise Refused("failed", self.name, "its cases are not described as cases are")
        return cases

    def values(self, number: int) -> array.array[float]:
        """Return what a case computes. Raise Refused."""
        self._ask({"values": number})
        size = self._answer().get("bytes")
        if type(size) is not int or not 0 < size <= MOST_BYTES or size % 4:
            raise Refused("failed", self.name, "it says no number of values that is possible")
        values = array.array("f")
        values.frombytes(self._read(size))
        return values

    def milliseconds(self, number: int) -> float:
        """Return how long a case takes. Raise Refused."""
        self._ask({"time": number})
        took = self._answer().get("ms")
        if type(took) is not float or not 0 < took < 1e7:
            raise Refused("failed", self.name, "it says no time that is possible")
        return took

    def _ask(self, order: dict[str, Any]) -> None:
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):  # the answer that does not come says it
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        size = int.from_bytes(self._read(4), "big")
        if size > MOST_BYTES:
            raise Refused("failed", self.name, "it says too much")
        try:
            answer = json.loads(self._read(size))
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise Refused("failed", self.name, "it answers something else than JSON")
        if "error" in answer:
            raise Refused("crashed", self.name, str(answer["error"])[:300])
        return answer

    def _read(self, size: int) -> bytes:
        read = bytearray()
        while len(read) < size:
            left = min(self.ends, self.until) - time.monotonic()
            if left <= 0 or not select.select([self.answers], [], [], left)[0]:
                if self.until < self.ends:
                    raise Refused("timeout", self.name, "it took many times as long as the released one")
                raise Refused("failed", self.name, "the time for all calls was over")
            part = os.read(self.answers, min(size - len(read), 1 << 20))
            if not part:
                raise Refused("crashed", self.name, self._how_it_ended())
            read += part
        return bytes(read)

    def _how_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(timeout=5)
            return f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"
        return "it says no more"


def _is_case(case: Any) -> bool:
    if not isinstance(case, dict) or case.keys() != set(DESCRIBED) or case["part"] not in ("step", "prompt", "rest"):
        return False
    name, load, times, bound = (case[key] for key in ("name", "load", "times", "bound"))
    if not isinstance(name, str) or not 0 < len(name) <= 100 or not name.isprintable():
        return False
    if not isinstance(load, list) or len(load) != 2 or not all(type(one) is int and one > 0 for one in load):
        return False
    return type(times) is int and 0 < times <= 10_000 and type(bound) is float and 0 < bound <= LOOSEST


def _adopt_orphans() -> None:
    """Become the parent of every process that a side leaves behind, so that it can be ended."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def _end_orphans() -> None:
    """End all processes below this one, also those that have left their session."""
    for _ in range(100):
        children = list(_children())
        if not children:
            return
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def _children() -> Iterator[int]:
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            yield from map(int, file.read_text().split())


def _line(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return "".join(filter(str.isprintable, text))[:300]


# The process of one tree


def side(told: int, file: str) -> None:
    """Answer orders until there are none."""
    orders = sys.stdin.buffer
    job = json.loads(orders.readline())
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
    signal.alarm(job["seconds"] + 30)  # the other process ends it earlier, if it still can
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE, MOST_FILE))
    with os.fdopen(told, "wb") as answers:
        try:
            cases = runpy.run_path(file)["cases"](job)
            _say(answers, {"cases": [{key: case[key] for key in DESCRIBED} for case in cases]})
            _obey(orders, answers, cases, job["device"])
        except BaseException as error:
            _say(answers, {"error": _line(error)})


def _obey(orders: Any, answers: Any, cases: Sequence[dict[str, Any]], device: str) -> None:
    import torch  # type: ignore[import-not-found,unused-ignore]

    number, run, clock = -1, None, None
    for line in orders:
        order = json.loads(line)
        asked = order.get("values", order.get("time"))
        if asked != number:
            run = clock = None  # memory of the case before
            if device == "cuda":
                torch.cuda.empty_cache()
            number, run = asked, cases[asked]["make"]()
        assert run is not None
        if "values" in order:
            given = run().detach().flatten()
            values = given[:: apart(len(given))].float().cpu().contiguous().numpy().tobytes()
            _say(answers, {"bytes": len(values)}, values)
            continue
        if clock is None:
            clock = _gpu_clock(torch, run) if device == "cuda" else _cpu_clock(run)
        _say(answers, {"ms": float(clock())})


def apart(values: int) -> int:
    """Return how far apart those of so many values lie that are compared: an odd number, which leaves no head out."""
    return -(-values // MOST_VALUES) | 1


def _gpu_clock(torch: Any, run: Callable[[], Any]) -> Callable[[], float]:
    """Return what times a launch by events, in a CUDA graph, as a server decodes; in milliseconds."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            alone = _elapsed(torch, run)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    launches = in_a_timing(alone)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            run()
    graph.replay()
    torch.cuda.synchronize()
    return lambda: statistics.median(_elapsed(torch, graph.replay) for _ in range(REPLAYS)) / launches


def _elapsed(torch: Any, run: Callable[[], Any]) -> float:
    """Return how long the GPU takes for it, in milliseconds."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    run()
    ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended))


def in_a_timing(alone_ms: float) -> int:
    """Return how many launches a timing has, for one that takes so long."""
    return max(1, min(LAUNCHES, int(LONG_MS / max(alone_ms, 0.001))))


def _cpu_clock(run: Callable[[], Any]) -> Callable[[], float]:
    """Return what times a launch; in milliseconds."""

    def once() -> float:
        began = time.perf_counter()
        run()
        return (time.perf_counter() - began) * 1000

    launches = in_a_timing(once())
    return lambda: statistics.median(once() for _ in range(launches))


def _say(answers: Any, answer: dict[str, Any], more: bytes = b"") -> None:
    text = json.dumps(answer).encode()
    answers.write(len(text).to_bytes(4, "big") + text + more)
    answers.flush()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        side(int(sys.argv[2]), sys.argv[3])
    else:
        sys.exit(main())
