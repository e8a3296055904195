"""Prove patches: the probe finds the bug in a release of the patch's range, but not in the patched release."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from gemmaspec.check.proof.source import source_of
from gemmaspec.core import data, launcher
from gemmaspec.core.errors import PatchError
from gemmaspec.core.patching.judged import PROBE as PROBE
from gemmaspec.core.patching.judged import deciding_probe
from gemmaspec.core.patching.patch import Patch
from gemmaspec.core.patching.plan import chain

NUMBERS: Final = "numbers.py"
"""A probe of numbers; a patch that changes how a kernel computes has one."""
RUNNER: Final = Path(__file__).with_name("run_probes.py")
_QUIET: Final = {
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
}
_PASSED_ON: Final = ("PATH", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")
"""Secrets that a probe does not get, because it is somebody else's code."""

Outcome = Literal["proven", "broken-probe", "not-open", "not-closed", "not-same", "unfit", "open", "closed"]
"""not-open: the probe passes on the stock tree, because the probe is wrong or vLLM fixed the bug. not-same: patched
kernels compute something else. unfit: no diff applies, and the probe did not run. open, closed: no diff applies to a
folder; the probe finds the bug there, or not."""


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """The result of a probe on one tree."""

    state: str
    seen: str


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The proof of one patch in one release."""

    patch: str
    release: str
    outcome: Outcome
    variant: str | None
    stock: ProbeResult | None
    patched: ProbeResult | None
    numbers: ProbeResult | None = None
    """The kernels' results on both trees, compared; None for a patch without a probe of numbers."""
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Whether the patch is proven there, or not needed."""
        return self.outcome in ("proven", "closed")


class Probes(contextlib.AbstractContextManager["Probes"]):
    """The process that runs probes; it starts with the first job and ends with the block.

    If it dies, the job that it ran has failed, and the next job starts another.
    """

    def __init__(self, interpreter: Path, triton: Callable[[], Path] | None = None) -> None:
        self._interpreter = interpreter
        self._triton = triton
        self._process: subprocess.Popen[str] | None = None
        self._stack = contextlib.ExitStack()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, path: Sequence[Path], probes: Mapping[str, Path], **more: str) -> dict[str, ProbeResult]:
        """Run probes with these folders first on sys.path, so that they import vllm from there."""
        job = {"path": [str(folder) for folder in path], "probes": {name: str(file) for name, file in probes.items()}}
        answer = self._answer(job | more)
        ended = {"state": "failed", "seen": "the process that runs probes ended"}
        return {name: ProbeResult(**answer.get(name, ended)) for name in probes}

    def _answer(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the process answers to a job; nothing if it dies of it."""
        if self._process and self._process.poll() is not None:
            self._forget(self._process)  # it died between two jobs, so neither of them has failed
        process = self._process or self._start()
        assert process.stdin
        assert process.stdout
        line = ""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line.endswith("\n"):
            self._forget(process)
            return {}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _forget(self, process: subprocess.Popen[str]) -> None:
        """End a process that died, so that the next job starts another."""
        self._end(process)
        self._process = None

    def compare(self, stock: Path, patched: Path, probes: Mapping[str, Path]) -> dict[str, ProbeResult]:
        """Run probes of numbers on both trees and compare what they computed."""
        if not probes:
            return {}
        apart = [self._triton()] if self._triton else []
        with tempfile.TemporaryDirectory(prefix="gemmaspec-numbers-") as keep:
            first = self.run([stock, *apart], probes, keep=keep)
            computed = {name: file for name, file in probes.items() if first[name].state == "counted"}
            return {**first, **self.run([patched, stock, *apart], computed, keep=keep)}

    def _start(self) -> subprocess.Popen[str]:
        home = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gemmaspec-prove-"))
        folders = {"HOME": home, "VLLM_CACHE_ROOT": home, "VLLM_CONFIG_ROOT": home, "TORCHINDUCTOR_CACHE_DIR": home}
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        self._process = subprocess.Popen(
            [str(self._interpreter), str(RUNNER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=home,
            text=True,
            env={**environment, **_QUIET, **folders, "PYTHONPATH": str(data.PROBES)},
        )
        self._stack.callback(self._end, self._process)
        return self._process

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        """End the process by closing its input; kill it if a probe still runs, as after Ctrl-C."""
        with contextlib.suppress(BrokenPipeError):
            if process.stdin:
                process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()


def prove(
    patches: Sequence[Patch],
    shelf: Mapping[str, Patch],
    releases: Sequence[str],
    probes: Probes,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Proof]:
    """Prove patches release by release; a patch is skipped for releases outside its ranges.

    `shelf` contains the patches that they need. All patches of a release are proven together, applied in the given
    order. Raise PatchError for a patch without a probe, EnvironmentMissing for an unreadable release.
    """
    need_probes(patches)
    for release in releases:
        claimed = [patch for patch in patches if patch.claims(release)]
        if claimed:
            names = ", ".join(patch.id for patch in claimed)
            progress(f"vllm {release}: {names}")
            yield from _prove_release(claimed, shelf, release, probes)


def need_probes(patches: Sequence[Patch]) -> None:
    """Raise PatchError for a patch without a probe; to be asked before an environment is built, which takes 1.4 GB."""
    for patch in patches:
        if not (patch.folder / PROBE).is_file():
            raise PatchError(
                f"{patch.folder}: {PROBE} is missing, so nothing demonstrates the bug",
                hint="write it: its probe() returns whether vLLM has the bug, and what it saw",
            )


def _prove_release(
    claimed: Sequence[Patch], shelf: Mapping[str, Patch], release: str, probes: Probes
) -> Iterator[Proof]:
    source = source_of(release)
    read = launcher.reader_of(source / "vllm")
    together: dict[str, launcher.Patch] = {}
    for patch in claimed:
        together |= {member.id: member for member in chain(patch, shelf)}
    plan = launcher.Plan(1, "", "", (), tuple(together.values()), "")
    results, changed = launcher.decide_plan(plan, release, read)
    decided = {result.patch.id: result for result in results}
    fitting = [patch for patch in claimed if decided[patch.id].state in ("applies", "drifted")]
    files = {patch.id: patch.folder / PROBE for patch in fitting}
    counts = {patch.id: patch.folder / NUMBERS for patch in fitting if (patch.folder / NUMBERS).is_file()}
    stock = probes.run([source], files) if files else {}
    with tempfile.TemporaryDirectory(prefix="gemmaspec-prove-") as folder:
        overlay = launcher.build_overlay(source / "vllm", Path(folder), changed) or source
        if files:
            patched = probes.run([overlay, source], files)
        else:
            patched = {}
        numbers = probes.compare(source, overlay, counts)
    for patch in claimed:
        looks = (stock.get(patch.id), patched.get(patch.id), numbers.get(patch.id))
        yield judge(patch, release, decided[patch.id], *looks)


def judge(
    patch: Patch,
    release: str,
    result: launcher.PatchResult,
    stock: ProbeResult | None,
    patched: ProbeResult | None,
    numbers: ProbeResult | None = None,
) -> Proof:
    """Return the proof that follows from the results on both trees; None for one that the probe did not run on."""
    outcome, detail = _outcome(patch, result, stock, patched)
    if outcome == "proven" and numbers and numbers.state != "same":
        outcome, detail = ("not-same" if numbers.state == "different" else "broken-probe"), numbers.seen
    return Proof(
        patch=patch.id,
        release=release,
        outcome=outcome,
        variant=result.variant,
        stock=stock,
        patched=patched,
        numbers=numbers,
        detail=detail,
    )


def _outcome(
    patch: Patch, result: launcher.PatchResult, stock: ProbeResult | None, patched: ProbeResult | None
) -> tuple[Outcome, str]:
    if stock is None:
        return "unfit", f"the state of the patch is {result.state}"
    for where, look in (("stock", stock), ("patched", patched)):
        if look and look.state == "failed":
            return "broken-probe", f"on the {where} tree: {look.seen}"
    if patched is None:
        return _unpatched(patch, result, stock)
    if stock.state != "open":
        return "not-open", f"the probe passes on the stock tree: {stock.seen}"
    if patched.state != "closed":
        return "not-closed", f"the bug remains: {patched.seen}"
    if patch.text.errors and not any(says(stock.seen, error) for error in patch.text.errors):
        return "broken-probe", f"the probe saw an error that patch.yaml does not list: {stock.seen}"
    return "proven", ""


def _unpatched(patch: Patch, result: launcher.PatchResult, stock: ProbeResult) -> tuple[Outcome, str]:
    """Return the outcome on a folder that the patch does not apply to, with the next command."""
    seen = f"{stock.seen}; the state of the patch is {result.state}"
    if stock.state == "open":
        return "open", f"{seen}; next: gemmaspec patch rebase {patch.id} --tree DIR"
    if result.state in launcher.FITS:
        return "closed", seen
    if deciding_probe(patch.folder):
        return "closed", f"{seen}; a start asks the probe too, and goes on without the patch"
    return "closed", f"{seen}; a start ends, because nothing shows that this probe knows a wrong fix"


def says(seen: str, error: str) -> bool:
    """Return whether an error text of patch.yaml, in which … matches any text, occurs in what the probe saw."""
    pattern = ".*".join(map(re.escape, error.split("…")))
    return re.search(pattern, seen, re.DOTALL) is not None


def ends_of_ranges(patches: Sequence[Patch], releases: Sequence[str]) -> list[str]:
    """Return the first and the last of the releases in the range of each variant of each patch."""
    ends: set[str] = set()
    for patch in patches:
        for variant in patch.variants:
            inside = [release for release in releases if launcher.range_contains(variant.specifier, release)]
            ends.update(inside[:1] + inside[-1:])
    return [release for release in releases if release in ends]
