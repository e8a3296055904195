"""Measure the patch engine for `make bench`: bytes and seconds of `patch verify`, and applying against `git apply`.

Every figure is a ratio of two measurements from one run, or is printed with its limit.
"""

from __future__ import annotations

import difflib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gemmaspec.core import data, launcher
from gemmaspec.core.patching.decide import needed_paths
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.index.wheels import read_from_wheel
from gemmaspec.run.stack.build import profile_plan

PYTHON = sys.executable
PROFILE, RELEASE = "spark-31b-e2b", "0.32.0"
Row = tuple[str, str, str]

MEASURED = """
import json, resource, sys, time
began = time.perf_counter()
from gemmaspec.check.carry.verify import Request, verify
outcome = verify(Request(all_releases=True))
print(json.dumps({
    "seconds": time.perf_counter() - began, "cells": len(outcome.cells), "unread": len(outcome.unread),
    "received": outcome.bytes_received, "wheels": outcome.bytes_of_wheels,
    "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
"""


def verifying() -> Iterator[Row]:
    """Yield the cost of `patch verify --all-releases` with an empty cache, then from the cache. Needs the network."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        cold = _verify(environment)
        whole = [_command(environment) for _ in range(5)]
    share = cold["received"] / cold["wheels"]
    read = f"{cold['received'] / 1e6:.1f} MB of {cold['wheels'] / 1e9:.2f} GB, {cold['cells']} verdicts"
    yield "`patch verify --all-releases`, bytes read of the wheels'", f"{share:.2%}", f"{read}; at most 1 %"
    yield "the same, cold, seconds", f"{cold['seconds']:.1f} s", "empty cache; at most 30"
    yield "the same, peak memory", f"{cold['rss'] / 1e6:.0f} MB", "cold; at most 150"
    yield "the same from the cache, whole command", f"{statistics.median(whole):.2f} s", "median of 5; at most 1.5"


def _verify(environment: Mapping[str, str]) -> dict[str, Any]:
    done = subprocess.run([PYTHON, "-c", MEASURED], check=True, capture_output=True, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    if found["unread"]:
        raise SystemExit(f"cannot measure: {found['unread']} releases are unreadable")
    return found


def _command(environment: Mapping[str, str]) -> float:
    began = time.perf_counter()
    command = [PYTHON, "-m", "gemmaspec", "patch", "verify", "--all-releases", "--json"]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return time.perf_counter() - began


def applying() -> Iterator[Row]:
    """Yield the time to decide and write a profile's patches on a release's files, compared with `git apply`."""
    plan = launcher.parse_plan(profile_plan(load_profile(PROFILE).profile, Shelf((data.PATCHES,))))
    files = read_from_wheel("vllm", RELEASE, needed_paths(plan.patches))
    diff = _diff(files, launcher.decide_plan(plan, RELEASE, files.get)[1])
    with tempfile.TemporaryDirectory() as folder:
        pairs = [_one_round(Path(folder) / str(index), plan, files, diff) for index in range(33)][3:]
    ours, git = (statistics.median(side) for side in zip(*pairs, strict=True))
    detail = (
        f"{PROFILE} on those files of vllm {RELEASE}: {ours * 1000:.1f} / {git * 1000:.1f} ms, median of 30; at most 1"
    )
    yield "applying a profile's patches against `git apply`", f"{ours / git:.2f}", detail


def _diff(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> bytes:
    """Return the same edits as a git diff for this release, because git finds the patch's own only at their lines."""
    lines: list[str] = []
    for path, patched in after.items():
        sides = (text.decode().splitlines(keepends=True) for text in (before[path], patched))
        lines += difflib.unified_diff(*sides, f"a/{path}", f"b/{path}")
    return "".join(lines).encode()


def _one_round(folder: Path, plan: launcher.Plan, files: Mapping[str, bytes], diff: bytes) -> tuple[float, float]:
    """Return the seconds of the launcher and of `git apply`, each on its own copy of the files."""
    for side in ("ours", "git"):
        for path, content in files.items():
            (folder / side / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / side / path).write_bytes(content)
    (folder / "run").mkdir()
    began = time.perf_counter()
    results, changed = launcher.decide_plan(plan, RELEASE, launcher.reader_of(folder / "ours/vllm"))
    launcher.build_overlay(folder / "ours/vllm", folder / "run", changed)
    ours = time.perf_counter() - began
    assert {result.state for result in results} == {"applies"}, results
    began = time.perf_counter()
    subprocess.run(["git", "apply", "-"], input=diff, cwd=folder / "git", check=True, capture_output=True)
    git = time.perf_counter() - began
    for path in changed:
        assert (folder / "run/overlay" / path).read_bytes() == (folder / "git" / path).read_bytes(), path
    return ours, git


SUITES = {"verify": verifying, "apply": applying}
