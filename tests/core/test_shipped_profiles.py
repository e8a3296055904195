"""What ships is as good as what gemmaspec itself knows: no profile has a finding whose cure is already released."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmaspec.check.lint.check import check
from gemmaspec.check.use_cases.lint import COSTLY, costly
from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.profile.machines import ANY_GPU
from gemmaspec.run.kept.attention import graphs_ahead
from gemmaspec.run.kept.lockfile import release_of

NAMES = sorted(file.stem for file in data.PROFILES.glob("*.yaml") if not file.stem.startswith("_"))
KEPT = {
    ("spark-31b-e2b", "GS701"): "its image moves on purpose, as the card's does",
    ("spark-31b-e2b", "GS702"): "its image moves on purpose, as the card's does",
    ("spark-26b-a4b-mtp", "GS505"): "its k is for one request; the profile says what was measured for eight",
}
"""Findings that no release, key or patch cures, and why each stays."""


def shipped(name: str) -> Loaded:
    """A shipped profile on its own machine; what is for any NVIDIA GPU, on the one that README's figures are of."""
    loaded = load_profile(name)
    return load_profile(name, overrides=["machine=h100"]) if loaded.profile.machine == ANY_GPU else loaded


@pytest.mark.parametrize("name", NAMES)
def test_no_shipped_profile_has_a_finding_that_names_a_released_cure(name: str) -> None:
    loaded = shipped(name)
    found = check(loaded, patches=Shelf((data.PATCHES,)), asked=release_of(loaded))
    told = [f"{one.code} {one.message}; {one.fix}" for one in found if (name, one.code) not in KEPT]
    assert not told


def test_no_finding_is_kept_that_is_no_more() -> None:
    for name in sorted({name for name, _ in KEPT}):
        loaded = shipped(name)
        codes = {one.code for one in check(loaded, patches=Shelf((data.PATCHES,)), asked=release_of(loaded))}
        assert {code for kept, code in KEPT if kept == name} <= codes


@pytest.mark.parametrize("name", NAMES)
def test_no_shipped_profile_lacks_cuda_graphs(name: str) -> None:
    assert not graphs_ahead(shipped(name).profile, elsewhere=True)


@pytest.mark.parametrize(
    ("name", "override", "code"),
    [
        ("spark-31b-mtp", "image=vllm/vllm-openai:v0.25.1", "GS506"),
        ("spark-31b-eagle3", "serve.disable_hybrid_kv_cache_manager=false", "GS302"),
    ],
)
def test_what_costs_speed_or_memory_is_found(name: str, override: str, code: str) -> None:
    loaded = load_profile(name, overrides=[override])
    found = {one.code for one in costly(loaded, release=release_of(loaded))}
    assert code in found
    assert found <= COSTLY


def test_a_dry_run_shows_what_costs_speed_or_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-daemon")  # so no registry is asked for an image's size
    release = ("--set", "runtime.vllm=0.32.0", "--set", "image=vllm/vllm-openai:v0.32.0")
    sets = ("--engine", "process", *release, "--no-speed-patches")
    assert run(["up", "spark-31b-mtp", "--dry-run", *sets]) == 0
    printed = capsys.readouterr().out
    assert "note:   GS506: speculative.method:" in printed
    assert run(["up", "spark-31b-mtp", "--dry-run", "--json", *sets]) == 0
    assert {one["code"] for one in json.loads(capsys.readouterr().out)["notes"]} == {"GS506"}
