"""A few hundred hostile trees of released files: nothing is patched at a wrong place, or called what it is not.

`make bench` decides thousands (tools/bench_hostile.py). What the generator can and how it knows: tests/support/hostile_trees.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pytest

from gemmaspec.core.launcher import launch
from gemmaspec.core.patching.decide import needed_paths
from gemmaspec.core.patching.patch import load_patches
from gemmaspec.core.patching.plan import launcher_patch
from gemmaspec.run.index.wheels import read_from_wheel
from tests.support.hostile_trees import RELEASES, judged, make_case

pytestmark = pytest.mark.network
PATCHES = {id_: launcher_patch(patch) for id_, patch in load_patches().items()}
PATHS = sorted(needed_paths(PATCHES.values()))


def is_alone(patch: launch.Patch, release: str) -> bool:
    """Whether a patch belongs into the released files as they are, and not into what another patch made of them."""
    edits = [edit for variant in launch.candidates(patch, release) for edit in variant.files]
    return bool(edits) and all(entry.lines for edit in edits for entry in edit.known if release in entry.vllm)


CLAIMS = [(release, id_) for release in RELEASES for id_, one in PATCHES.items() if is_alone(one, release)]
EACH = 10


@functools.cache
def stock(release: str) -> Mapping[str, bytes]:
    return read_from_wheel("vllm", release, PATHS)


@pytest.mark.parametrize(("release", "id_"), CLAIMS)
def test_no_hostile_tree_is_decided_wrongly(release: str, id_: str) -> None:
    patch, seen = PATCHES[id_], set()
    for number in range(EACH):
        case = make_case(number, release, patch, stock(release), seed=1)
        state, fault = judged(case, patch)
        assert not fault, (number, case.version, case.mutations, state)
        seen.add((case.truth, state))
    assert len(seen) > 1  # not everything is refused, or let through


def test_the_generator_makes_every_kind_of_tree_and_the_same_ones_again() -> None:
    truths, mutations = set(), set()
    for number, (release, id_) in enumerate(CLAIMS * 6):
        case = make_case(number, release, PATCHES[id_], stock(release))
        truths.add(case.truth)
        mutations.update(case.mutations)
        if number < 20:
            assert case == make_case(number, release, PATCHES[id_], stock(release))
    assert truths == {"open", "closed", "by hand", "refuse"}
    assert {
        "half",
        "in_a_string",
        "defined_twice",
        "renamed",
        "line_endings",
        "encoding",
        "bait",
        "linked",
        "rebound",
    } <= mutations


def test_the_oracle_finds_a_decision_that_is_wrong() -> None:
    """A launcher without the places of known releases takes whatever place its lines are at: the oracle must see it."""
    from dataclasses import replace

    release, id_ = "0.33.0", "kv-spec-uniform-valueerror"
    blind = replace(
        PATCHES[id_],
        variants=tuple(
            replace(one, files=tuple(replace(edit, known=()) for edit in one.files)) for one in PATCHES[id_].variants
        ),
    )
    faults = {judged(make_case(number, release, PATCHES[id_], stock(release)), blind)[1] for number in range(80)}
    assert "patched where no place is right" in faults
