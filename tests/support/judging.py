"""Ask a patch's probe of fixes that only look right, and of right ones in other words, put into a released vLLM."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gemmaspec.check.proof.prove import RUNNER, Probes
from gemmaspec.check.proof.source import source_of
from gemmaspec.core import data, launcher
from gemmaspec.core.patching.judged import JUDGED as FILE
from gemmaspec.core.patching.judged import PROBE, probe_files
from gemmaspec.core.patching.patch import load_patches
from gemmaspec.core.patching.plan import chain
from tests.support.foreign_fixes import Fix, Fixes
from tests.support.judged_fixes import JUDGED

TOGETHER = Path(__file__).with_name("judge_fork.py")


@dataclass(kw_only=True)
class Judged:
    """What a probe says of the fixes of its bug."""

    wrong: int = 0
    right: int = 0
    called_closed: list[str] = field(default_factory=list)
    """Wrong fixes that it calls right."""
    missed: list[str] = field(default_factory=list)
    """Right fixes that it does not call right."""
    releases: set[str] = field(default_factory=set)


def judge(patch: str, probes: Probes) -> Judged:
    """Ask a patch's probe of every fix. Raise ValueError for a fix that is not one of the release's file."""
    found = Judged()
    for at, fixes in enumerate(JUDGED[patch]):
        found.releases.add(fixes.release)
        asked = _asked(patch, fixes, probes)
        for number, (state, seen) in enumerate(asked[: len(fixes.right)]):
            found.right += 1
            if state != "closed":
                found.missed.append(f"{patch} {at} right {number}: {state}: {seen}")
        for number, (state, seen) in enumerate(asked[len(fixes.right) :]):
            found.wrong += 1
            if state == "closed":
                found.called_closed.append(f"{patch} {at} wrong {number}: {seen}")
    return found


def _asked(patch: str, fixes: Fixes, probes: Probes) -> list[tuple[str, str]]:
    """Return what a patch's probe says of the right fixes, then of the wrong ones.

    The first one is asked as a start asks, and again as all are: see judge_fork.py. Both must find the same state; what a
    probe saw of memory that nobody wrote differs.
    """
    source = source_of(fixes.release)
    files = _patched(patch, fixes.release) if fixes.patched else {}
    text = files[fixes.path].decode() if fixes.path in files else (source / fixes.path).read_text(encoding="utf-8")
    texts = [fixed(text, fix) for fix in (*fixes.right, *fixes.wrong)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        overlay = launcher.build_overlay(source / "vllm", folder, {**files, fixes.path: texts[0].encode()})
        assert overlay
        alone = probes.run([overlay], {patch: data.PATCHES / patch / PROBE})[patch]
        together = probes.run([overlay], {patch: _together(folder, overlay, patch, fixes, texts)})[patch]
    assert together.state == "closed", together.seen
    asked = [(state, seen) for state, seen in json.loads(together.seen)]
    assert asked[0][0] == alone.state, (asked[0], alone)
    return asked


def _together(folder: Path, overlay: Path, patch: str, fixes: Fixes, texts: Sequence[str]) -> Path:
    """Return a probe that runs the patch's own on every text of a file in the overlay."""
    job = {
        "module": fixes.path.removesuffix(".py").replace("/", "."),
        "file": str(overlay / fixes.path),
        "texts": texts,
        "run": str(data.PATCHES / patch / PROBE),
        "runner": str(RUNNER),
    }
    (folder / "job.json").write_text(json.dumps(job))
    return shutil.copy(TOGETHER, folder)


@cache
def _patched(patch: str, release: str) -> Mapping[str, bytes]:
    """The files of a release that a patch edits, as it makes them."""
    plan = launcher.Plan(1, "", "", (), tuple(chain(load_patches()[patch], load_patches())), "")
    _, changed = launcher.decide_plan(plan, release, launcher.reader_of(source_of(release) / "vllm"))
    return changed


def fixed(text: str, fix: Fix) -> str:
    """Return a file with a fix. Raise ValueError if what it replaces is not there."""
    for old, new in fix:
        if old not in text:
            raise ValueError(f"not in the file: {old}")
        text = text.replace(old, new, 1)
    compile(text, "fixed", "exec", dont_inherit=True)
    return text


def write_judgement(folder: Path, **changed: Any) -> None:
    """Write a made-up result of judging a patch's probe, one that lets it decide unless told otherwise."""
    files = probe_files(folder)
    assert files
    told = {"wrong": 12, "called_closed": 0, "right": 5, "recognised": 4, "releases": ["0.33.0"]}
    (folder / FILE).write_text(json.dumps({"schema": 1, "probe": files.digest, **told, **changed}))


def every_fix() -> Iterator[tuple[str, Fixes, Fix]]:
    """Yield each fix with its patch."""
    for patch, several in JUDGED.items():
        for fixes in several:
            for fix in (*fixes.right, *fixes.wrong):
                yield patch, fixes, fix
