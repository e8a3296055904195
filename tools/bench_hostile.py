"""Decide thousands of hostile trees and count wrong decisions, of which there must be none.

    .venv/bin/python tools/bench_hostile.py            # 4,200 cases
    .venv/bin/python tools/bench_hostile.py 600 --seed 7

The trees are files of six released wheels, changed at random (tests/support/hostile_trees.py makes the changes and
knows the truth about each). A decision is wrong if a patch is applied at a wrong place or twice, is wrongly called
applied, superseded or not needed, or if a half-patched tree would start. Exit code 1 if there is a wrong decision.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from gemmaspec.core.patching.decide import needed_paths
from gemmaspec.core.patching.patch import load_patches
from gemmaspec.core.patching.plan import launcher_patch
from gemmaspec.run.index.wheels import read_from_wheel
from tests.check.test_hostile_trees import CLAIMS
from tests.support.hostile_trees import RELEASES, judged, make_case

CASES = 4200
PATCHES = {id_: launcher_patch(patch) for id_, patch in load_patches().items()}
STOCK: dict[str, Mapping[str, bytes]] = {}


def main(arguments: Sequence[str]) -> int:
    """Decide all cases on every core; print the counts, and how to reproduce each wrong case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="?", type=int, default=CASES)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    paths = needed_paths(PATCHES.values())
    STOCK.update({release: read_from_wheel("vllm", release, paths) for release in RELEASES})
    pairs = CLAIMS  # not those that go into what another patch made of a file
    jobs = [(number, *pairs[number % len(pairs)], options.seed) for number in range(options.cases)]
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    began, failures = time.perf_counter(), 0
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for truth, state, fault, described in pool.imap(decide, jobs, chunksize=8):
            counts[truth, state] += 1
            if not counts.total() % 300:
                print(f"{counts.total()} trees, {failures} wrong", file=sys.stderr, flush=True)
            if fault:
                failures += 1
                print(f"WRONG: {fault}: {described}", flush=True)
    for (truth, state), count in sorted(counts.items()):
        print(f"{truth:<8} {state:<11} {count:>5}")
    releases = len({release for release, _ in pairs})
    seconds = time.perf_counter() - began
    print(f"{options.cases} trees of {releases} releases, seed {options.seed}: {failures} wrong, in {seconds:.0f} s")
    return 1 if failures else 0


def decide(job: tuple[int, str, str, int]) -> tuple[str, str, str, str]:
    """Return the truth about a case, the decision, the error and the description of the case."""
    number, release, id_, seed = job
    case = make_case(number, release, PATCHES[id_], STOCK[release], seed=seed)
    state, fault = judged(case, PATCHES[id_])
    described = f"case {number} of seed {seed}: {id_} on {release} as {case.version}: {', '.join(case.mutations)}"
    return case.truth, state, fault, described


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
