"""Every shipped patch, proven at both ends of every range of releases: real vLLM modules on a CPU."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmaspec import data, launcher
from gemmaspec.patching.patch import load_patches
from gemmaspec.proof.prove import NUMBERS, Probes, ends_of_ranges, prove
from gemmaspec.trees import listing
from tests.probing import probing
from tests.real import gemmaspec

pytestmark = pytest.mark.network
SHIPPED = load_patches()


@pytest.fixture(scope="module")
def probes() -> Iterator[Probes]:
    with probing() as found:
        yield found


@pytest.mark.parametrize("patch", SHIPPED)
def test_every_patch_is_proven_at_the_ends_of_its_ranges(patch: str, probes: Probes) -> None:
    """Each by itself, with those that it needs."""
    one = SHIPPED[patch]
    published = [name for name in listing.published().releases() if launcher.PUBLISHED_RELEASE.fullmatch(name)]
    proofs = [*prove([one], SHIPPED, ends_of_ranges([one], published), probes)]
    assert [(proof.release, proof.detail) for proof in proofs if not proof.holds] == []
    assert len(proofs) >= len(one.variants)
    assert all(proof.numbers for proof in proofs) == (one.folder / NUMBERS).is_file()


def test_kernels_that_compute_something_else_are_not_proven(tmp_path: Path) -> None:
    """A piece in which a token sees nothing sets the maximum, as up to 0.32, and its scores of -200 become 0."""
    folder = tmp_path / "triton-verify-split-kv"
    shutil.copytree(data.PATCHES / folder.name, folder)
    diff = folder / "0.32.diff"
    wrong = diff.read_text()
    for right, other in (
        ('(segm_expsum > 0) & (segm_max != float("-inf"))', "(segm_expsum >= 0)"),
        ("# only for the exponent arithmetic below.", 'm_j = tl.where(m_j > float("-inf"), m_j, 0.0)'),
    ):
        assert right in wrong
        wrong = wrong.replace(right, other)
    diff.write_text(wrong)
    with (folder / "numbers.py").open("a") as numbers:
        numbers.write('BATCHES = {name: BATCHES[name] for name in ("sliding, ragged", "full, scores of -200")}\n')
    done = gemmaspec("patch", "prove", folder.name, "--release", "0.32.0", "--patches", str(tmp_path), "--json")
    (proof,) = done.json["results"]
    assert (done.code, proof["outcome"], proof["stock"]["state"]) == (1, "broken-probe", "open")
    assert "full, scores of -200" in proof["detail"]
