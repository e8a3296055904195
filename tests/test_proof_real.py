"""Every shipped patch, proven at both ends of every range of releases: real vLLM modules on a CPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gemmaspec import data
from gemmaspec.patching.patch import load_patches
from tests.real import gemmaspec

pytestmark = pytest.mark.network
SHIPPED = load_patches()


@pytest.mark.parametrize("patch", [pytest.param(one, marks=pytest.mark.xdist_group(one)) for one in SHIPPED])
def test_every_patch_is_proven_at_the_ends_of_its_ranges(patch: str) -> None:
    done = gemmaspec("patch", "prove", patch, "--json", timeout=1800)
    bad = [(one["release"], one["detail"]) for one in done.json["results"] if not one["ok"]]
    assert (done.code, bad) == (0, [])
    assert len(done.json["results"]) >= len(SHIPPED[patch].variants)
    assert all(one["numbers"] for one in done.json["results"]) == (data.PATCHES / patch / "numbers.py").is_file()


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
    done = gemmaspec("patch", "prove", folder.name, "--release", "0.32.0", "--patches", str(tmp_path), "--json")
    (proof,) = done.json["results"]
    assert (done.code, proof["outcome"], proof["stock"]["state"]) == (1, "broken-probe", "open")
    assert "full, scores of -200" in proof["detail"]
