"""Going back with a real server whose models came from the fake Hub; tests/pinned_server.py does it in a container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import hub as hub_of
from tests.pinned_server import DEAD, goods, running_flag
from tests.real import PORT, RUN, STATE, gemmaspec, tiny_pair

PULLED = f"pulled-{RUN}"
"""A profile of this run's own, never ready before."""


@pytest.fixture
def profile(tmp_path: Path) -> Iterator[Path]:
    """Its file; its server is stopped at the end."""
    yield tmp_path / f"{PULLED}.yaml"
    gemmaspec("down", PULLED)


@pytest.mark.real_process
def test_pulled_models_are_served_and_gone_back_to_without_a_network(profile: Path, tmp_path: Path) -> None:
    pair = tiny_pair()
    home = tmp_path / "hf"
    with hub_of.serve() as hub:
        commits = {role: hub.add_folder(f"some/tiny-{role}", pair / f"tiny-{role}") for role in ("target", "draft")}
        profile.write_text(
            f"extends: tiny-cpu\nname: {PULLED}\nserve: {{port: {PORT}}}\nenv: {{HF_HUB_OFFLINE: null}}\n"
            "target: {model: some/tiny-target}\ndraft: {model: some/tiny-draft}\n"
        )
        env = {**hub.environment(home), "GEMMASPEC_STATE": str(STATE)}
        pulled = gemmaspec("pull", str(profile), "--engine", "process", env=env)
        assert pulled.code == 0, pulled.err
        locked = gemmaspec("lock", str(profile), "--engine", "process", "--json", env=env)
        assert locked.code == 0, locked.err
    lock = locked.json["lock"]
    assert {role: lock[role]["revision"] for role in commits} == commits
    assert lock["versions"]["torch"].startswith("2.")

    gone = {**env, "HF_ENDPOINT": DEAD}
    up = ("up", str(profile), "--engine", "process")
    done = gemmaspec(*up, "--json", env=gone)
    assert done.code == 0, done.err
    assert done.json["answer"]["draft_tokens"] > 0
    assert "warning" not in done.err
    assert "not kept" not in done.err, done.err
    assert "the Hub does not answer; the server will use the models in the cache" in done.err
    assert gemmaspec("restart", str(profile), "--dry-run", env=gone).code == 0

    # This test is about `rollback` by hand, so `up` must not go back by itself.
    other = ("--set", "serve.max_num_seqs=3", "--timeout", "3", "--no-rollback-on-failure")
    failed = gemmaspec(*up, *other, env=gone)
    assert failed.code == 7, failed.err
    assert goods(PULLED) == [False]
    back = gemmaspec("rollback", PULLED, "--json", env=gone)
    assert back.code == 0, back.err
    assert back.json["answer"]["draft_tokens"] > 0
    assert running_flag("--revision", PULLED) == commits["target"]
    drift = gemmaspec("restart", str(profile), "--dry-run", "--json", env=gone)
    assert drift.code == 3
    assert f"-{commits['target']}" in drift.json["command"].splitlines()
