"""Patches for speed, measured on the spot: real patches, the real vLLM for CPUs, and Triton's interpreter as the GPU.

All of it is what runs on a GPU, but the clock and the shapes. Copies of a real patch are broken in one line each.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from gemmaspec.check.proof.environment import triton_folder
from gemmaspec.core import data
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.patching.spot import Step, verdict
from gemmaspec.serve import spot
from tests.support import placed, real
from tests.support.real import cpu_python, cpu_site
from tests.support.spot_job import JOB

pytestmark = [pytest.mark.real_process, pytest.mark.network]

PATCH, FILE = "triton-launch-params", "vllm/v1/attention/ops/triton_unified_attention.py"
COMMENT = "    # More than 16 tokens are a prompt, which is never split. The kernel masks a block"
"""A line that the patch adds to the function that launches; each copy has another line there."""
BROKEN = {
    "wrong-line": "    q = q * 1.01",
    "sleeps": "    __import__('time').sleep(3.0)",
    "dies": "    __import__('os')._exit(9)",
    "hangs": "    __import__('time').sleep(9999)",
    "writes": "    exec(open(__import__('os').environ['HOME'] + '/../../hostile.py').read())",
}
HOSTILE = """
import json, os, pathlib, time
judge = os.getppid()
forged = {{"schema": 1, "vllm": "0.32.0", "place": "a better GPU", "results": [
    {{"patch": "writes", "state": "measured", "side": "", "detail": "", "cases": []}}]}}
line = ("\\n" + json.dumps(forged) + "\\n").encode()
pathlib.Path({store!r}).mkdir(parents=True, exist_ok=True)
pathlib.Path({store!r}, "writes-0123456789abcdef.json").write_text(json.dumps(forged))
for number in range(1, 64):
    try:
        os.write(number, line) if number < 3 else None
    except OSError:
        pass
if os.fork() == 0:  # outlives its session, and goes on writing where the result is written
    os.setsid()
    if os.fork() == 0:
        pathlib.Path({pid!r}).write_text(str(os.getpid()))
        while True:
            for name in ("1", "2"):
                try:
                    with open(f"/proc/{{judge}}/fd/{{name}}", "wb", buffering=0) as out:
                        out.write(line)
                except OSError:
                    pass
            time.sleep(0.05)
    os._exit(0)
"""


def copy(folder: Path, name: str, line: str) -> None:
    """Write a copy of the real patch with another line, under another name."""
    place, site = folder / name, cpu_site()
    shutil.copytree(data.PATCHES / PATCH, place)
    for file in ("known.json", "evidence.json"):
        (place / file).unlink()
    text = (place / "patch.yaml").read_text().replace(f"id: {PATCH}", f"id: {name}")
    claim = text[text.index("pays:\n") : text.index("variants:\n")]
    (place / "patch.yaml").write_text(text.replace(claim, "").replace("reviewed: true", "reviewed: false"))
    diff = (place / "0.26.diff").read_text()
    assert diff.count(f"+{COMMENT}\n") == 1
    (place / "0.26.diff").write_text(diff.replace(f"+{COMMENT}\n", f"+{line}\n"))
    numbers = data.PATCHES / "triton-verify-split-kv" / "numbers.py"
    cases = (
        (place / "cases.py")
        .read_text()
        .replace('Path(__file__).parent.with_name("triton-verify-split-kv") / "numbers.py"', f'Path("{numbers}")')
    )
    (place / "cases.py").write_text(cases)
    placed.record(place, {FILE: (site / FILE).read_text()})


@pytest.fixture(scope="module")
def triton() -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GEMMASPEC_STATE", str(real.SHARED))
        yield triton_folder(cpu_python(), progress=print)


def measured(folder: Path, shelf: Shelf, names: list[str], triton: Path, **job: Any) -> Mapping[str, Any]:
    """Run the script as gemmaspec does, and return what it says of each patch."""
    planned: Any = SimpleNamespace(
        patches=[shelf[name] for name in names], job={**JOB, **job}, seconds_of=lambda _: 240
    )
    bundle = folder / "bundle"
    bundle.mkdir()
    spot.bundle(bundle, planned, shelf)
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(triton)}
    done = subprocess.run(
        [str(cpu_python()), str(bundle / spot.SCRIPT)], capture_output=True, text=True, timeout=900, env=environment
    )
    assert done.returncode == 0, done.stderr
    answer = spot.read(done.stderr.strip().splitlines(), names)
    assert answer.vllm.startswith("0.32.0")
    assert answer.place.startswith("no GPU, torch 2.13.0")
    return {one.patch: one for one in answer.results}


def test_real_patches_compute_the_same_on_both_trees_and_are_timed(tmp_path: Path, triton: Path) -> None:
    names = ["gemma4-fused-norms", "triton-group-geometry", "triton-verify-split-kv"]
    found = measured(tmp_path, Shelf([data.PATCHES]), names, triton, loads=[[1, 40], [2, 40]])
    for name, one in found.items():
        assert (one.state, one.side, one.detail) == ("measured", "", ""), name
        assert one.cases, name
        for case in one.cases:
            assert case.off <= case.bound, name
            assert len(case.released) == len(case.patched) == 3
    assert [case.load for case in found["triton-group-geometry"].cases] == [(2, 40)]


def test_a_patch_that_changes_no_call_of_a_server_is_named_as_that(tmp_path: Path, triton: Path) -> None:
    found = measured(tmp_path, Shelf([data.PATCHES]), ["triton-group-geometry"], triton)["triton-group-geometry"]
    assert (found.state, found.cases) == ("idle", ())


def test_a_broken_copy_of_a_patch_is_refused_whatever_is_wrong_with_it(tmp_path: Path, triton: Path) -> None:
    (tmp_path / "patches").mkdir()
    for name, line in {"as-it-is": COMMENT, **BROKEN}.items():
        copy(tmp_path / "patches", name, line)
    store, pid = tmp_path / "state" / "measured-here", tmp_path / "pid"
    hostile = HOSTILE.format(store=str(store), pid=str(pid))
    (tmp_path / "hostile.py").write_text(hostile)
    shelf = Shelf([data.PATCHES, tmp_path / "patches"])
    found = measured(tmp_path, shelf, ["as-it-is", *BROKEN], triton)
    steps = [Step(load=(1, 40), ms=1000.0)]

    whole = found["as-it-is"]
    assert (whole.state, [case.part for case in whole.cases]) == ("measured", ["prompt", "rest"])
    assert re.search("a prompt gains|times as long", verdict(whole, steps).because)
    for name, state in {"wrong-line": "wrong", "dies": "crashed", "hangs": "timeout"}.items():
        assert (found[name].state, found[name].side) == (state, "patched"), found[name]
        assert verdict(found[name], steps).taken is False
    assert "rounding" in found["wrong-line"].detail
    assert found["dies"].detail == "it ended with exit code 9"
    assert found["sleeps"].state == "measured"
    assert verdict(found["sleeps"], steps).taken is False
    assert "times as long" in verdict(found["sleeps"], steps).because

    written = found["writes"]
    assert written.cases, "what it printed and wrote was taken for the result"
    assert pid.is_file(), "it did not get so far"
    assert not psutil.pid_exists(int(pid.read_text())), "a process of the patch goes on"
