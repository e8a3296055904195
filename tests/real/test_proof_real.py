"""Every shipped patch, proven at both ends of every range of releases: real vLLM modules on a CPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gemmaspec.check.proof.prove import NUMBERS, Probes, ends_of_ranges, prove
from gemmaspec.core import data, launcher
from gemmaspec.core.patching.patch import load_patches
from gemmaspec.run.trees import listing
from tests.support.real import environment, gemmaspec

pytestmark = pytest.mark.network
SHIPPED = load_patches()
DRAFTED = Path(__file__).parent.parent / "support" / "truncated_draft.py"

PLACES = """
from gemmaspec.check.proof.environment import prove_python, triton_folder
from gemmaspec.check.proof.source import source_of
python = prove_python(progress=lambda _: None)
print(python, triton_folder(python, progress=lambda _: None), source_of({release!r}), sep="\\n")
"""
LAUNCHES = """
import json, sys, time
sys.path[:0] = sys.argv[1:]
import interpreted, prompt_launches, torch
def milliseconds(torch, run):
    began = time.perf_counter()
    run()
    return (time.perf_counter() - began) * 1000
layer = {"heads": 4, "kv_heads": 2, "head": 64, "window": 16}
job = {"fp8": False, "new": 40, "context": 70, "seconds": 600}
print(json.dumps(prompt_launches.prompt_row(
    torch, interpreted.attention(), layer, job, major=9, device="cpu", milliseconds=milliseconds)))
"""


@pytest.mark.parametrize("patch", [pytest.param(patch, marks=pytest.mark.xdist_group(patch)) for patch in SHIPPED])
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


@pytest.mark.parametrize("release", ["0.33.0"])
def test_launches_of_a_prompt_are_tried_with_the_kernel_of_a_release(release: str) -> None:
    """In Triton's interpreter, whose times mean nothing: every launch runs and computes what the released one does."""
    command = [sys.executable, "-c", PLACES.format(release=release)]
    made = subprocess.run(command, env=environment(None), capture_output=True, text=True, check=True)
    python, *path = made.stdout.split()
    path.append(str(data.PROBES))
    done = subprocess.run([python, "-c", LAUNCHES, *path], capture_output=True, text=True, check=False)
    row = json.loads(done.stdout)
    assert row["key"] == "prompt:9,64,2"
    assert len(row["turns"]) == 3
    assert (row["tried"], row["wrong"], row["failed"]) == (13, 0, 0)


@pytest.mark.parametrize("release", ["0.32.0", "0.33.0"])
def test_a_draft_of_listed_ids_leaves_the_targets_distribution_as_it_is(release: str) -> None:
    """mtp-draft-ids under model runner v2, whose sampler is written in Triton: the CPU's servers run v1."""
    command = [sys.executable, "-c", PLACES.format(release=release)]
    made = subprocess.run(command, env=environment(None), capture_output=True, text=True, check=True)
    python, *path = made.stdout.split()
    done = subprocess.run([python, DRAFTED, *path, data.PROBES], capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    expected = [share * found["answers"] for share in found["wanted"]]
    far = sum((count - wanted) ** 2 / wanted for count, wanted in zip(found["counts"], expected, strict=True))
    assert found["elsewhere"] == 0
    assert found["unlisted"] > found["answers"] / 2, "the target's own ids are what is sampled most"
    assert far < 56, "chi-squared with 23 degrees of freedom; a right sampler exceeds this once in ten thousand times"
