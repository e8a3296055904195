"""Every shipped probe, run as the launcher runs it before a start: the text alone, in a fresh Python, on a real vLLM.

The modules are those of a release, without its compiled parts; a start has these too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmaspec.check.proof.environment import prove_python
from gemmaspec.check.proof.source import source_of
from gemmaspec.core import launcher
from gemmaspec.core.launcher import launch
from gemmaspec.core.patching.judged import probe_files
from gemmaspec.core.patching.patch import load_patches
from gemmaspec.run.trees import listing
from tests.support.real import STATE

pytestmark = pytest.mark.network
OF_DEFECTS = [name for name, patch in load_patches().items() if not patch.is_speed]


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GEMMASPEC_STATE", str(STATE))
        yield prove_python(progress=print)


@pytest.mark.parametrize("name", OF_DEFECTS)
def test_a_shipped_probe_finds_its_bug_before_a_start(name: str, python: Path, tmp_path: Path) -> None:
    patch = load_patches()[name]
    releases = [one for one in listing.published().releases() if launcher.PUBLISHED_RELEASE.fullmatch(one)]
    release = next(one for one in reversed(releases) if patch.claims(one))
    source, files = source_of(release), probe_files(patch.folder)
    assert files
    judge = launch.load_next_to_this(launch.JUDGE)
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(source), "VLLM_TARGET_DEVICE": "empty"}
    found = judge.probed(files.text, source / "vllm", tmp_path, given, files.beside, python=str(python))
    assert found["state"] == "open", found
