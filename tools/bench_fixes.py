"""Decide foreign fixes of the patches' bugs: what the launcher calls right ones, and ones that only look right.

    .venv/bin/python tools/bench_fixes.py            # the text and the launcher's digests alone
    .venv/bin/python tools/bench_fixes.py --probe    # and the patch's probe, where a start would ask it

The fixes are those of tests/support/foreign_fixes.py, each as the release itself, as 0.34.0 and as a development
build. A fix that leaves the bug in must never be called superseded or applied. Exit code 1 if one is, or if a probe
disagrees.
"""

from __future__ import annotations

import argparse
import collections
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from gemmaspec.check.proof.environment import prove_python
from gemmaspec.check.proof.prove import PROBE, Probes
from gemmaspec.check.proof.source import source_of
from gemmaspec.core import launcher
from gemmaspec.core.patching.decide import needed_paths
from gemmaspec.core.patching.patch import load_patches
from gemmaspec.core.patching.plan import launcher_patch
from gemmaspec.run.index.wheels import read_from_wheel
from tests.support.foreign_fixes import TUNED, UNSEEN, Fixes

VERSIONS = ("", "0.34.0", "{}.dev3+gabc1234")
PATCHES = load_patches()


def main(arguments: Sequence[str]) -> int:
    """Print the counts for each patch and set, and each fix that is called what it is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", action="store_true", help="ask the probes what each fix does")
    parser.add_argument("--unseen", action="store_true", help="only those that were written later")
    options = parser.parse_args(arguments)
    faults = 0
    with Probes(prove_python(progress=print) if options.probe else Path(sys.executable)) as probes:
        for name, fixes in (("tuned", {} if options.unseen else TUNED), ("unseen", UNSEEN)):
            for id_, one in fixes.items():
                faults += _one(name, id_, one, probes if options.probe else None)
    return 1 if faults else 0


def _one(name: str, id_: str, fixes: Fixes, probes: Probes | None) -> int:
    """Decide all fixes of a patch; print their states, and return how many are wrongly called closed."""
    patch, faults = launcher_patch(PATCHES[id_]), 0
    stock = read_from_wheel("vllm", fixes.release, needed_paths([patch]))
    for kind, some in (("right", fixes.right), ("wrong", fixes.wrong)):
        counts: collections.Counter[str] = collections.Counter()
        for number, fix in enumerate(some):
            data = fixed(stock[fixes.path].decode(), fix).encode()
            results = list(_results(patch, fixes, stock | {fixes.path: data}))
            seen = _probed(id_, fixes, data, probes) if probes else ""
            states = [_started(result, seen) for result in results]
            counts.update(states[:1])
            closed = [state for state in states if state in ("superseded", "applied")]
            if closed and kind == "wrong":
                faults += 1
                print(f"WRONG: {name} {id_} {kind} {number}: {states}")
            if probes and seen != kind_of(kind):
                faults += 1
                print(f"THE PROBE SAYS {seen}: {name} {id_} {kind} {number}")
            if kind == "right" and states[0] not in ("superseded", "applied"):
                print(f"  {states[0]}: {name} {id_} {kind} {number}")
        print(f"{name:<7} {id_:<28} {kind}: {dict(counts)}", flush=True)
    return faults


def kind_of(kind: str) -> str:
    """Return what a probe says of a right or wrong fix."""
    return "closed" if kind == "right" else "open"


def fixed(text: str, fix: Sequence[tuple[str, str]]) -> str:
    """Return a file with a fix. Raise ValueError if it is not there."""
    for old, new in fix:
        if old not in text:
            raise ValueError(f"not in the file: {old}")
        text = text.replace(old, new, 1)
    compile(text, "fixed", "exec", dont_inherit=True)
    return text


def _started(result: launcher.PatchResult, seen: str) -> str:
    """Return the state with which a start goes on, or ends, if the probe says this."""
    is_asked = seen and result.state not in launcher.FITS and not result.stands
    return "superseded" if is_asked and seen == "closed" else result.state


def _results(patch: launcher.Patch, fixes: Fixes, files: dict[str, bytes]) -> Iterator[launcher.PatchResult]:
    for version in VERSIONS:
        plan = launcher.Plan(1, "", "", (), (patch,), "")
        (result,), _ = launcher.decide_plan(plan, version.format(fixes.release) or fixes.release, files.get)
        yield result


def _probed(id_: str, fixes: Fixes, data: bytes, probes: Probes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        overlay = launcher.build_overlay(source_of(fixes.release) / "vllm", Path(folder), {fixes.path: data})
        assert overlay
        found = probes.run([overlay], {id_: PATCHES[id_].folder / PROBE})[id_]
        shutil.rmtree(overlay)
    return "open" if found.state == "failed" else found.state


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
