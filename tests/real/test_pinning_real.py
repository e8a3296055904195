"""A real server whose models came from the fake Hub, and what is kept of it; tests/support/pinned_server.py goes back to one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmaspec.serve.knowngood import known_goods
from tests.support import heads
from tests.support import hub as hub_of
from tests.support.pinned_server import DEAD, goods
from tests.support.real import PORT, RUN, STATE, gemmaspec, tiny_pair

PULLED = f"pulled-{RUN}"
"""A profile of this run's own, never ready before."""


@pytest.fixture
def profile(tmp_path: Path) -> Iterator[Path]:
    """Its file; its server is stopped at the end."""
    yield tmp_path / f"{PULLED}.yaml"
    gemmaspec("down", PULLED)


@pytest.mark.real_process
def test_pulled_models_are_served_without_a_network_and_kept_by_their_commits(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target is found by its commit, as after `rollback`, and the draft by its branch."""
    pair = tiny_pair()
    home = tmp_path / "hf"
    with hub_of.serve() as hub:
        folders = {"target": "tiny-target", "draft": "tiny-eagle3"}
        commits = {role: hub.add_folder(f"some/{folder}", pair / folder) for role, folder in folders.items()}
        profile.write_text(
            f"extends: tiny-cpu-eagle3\nname: {PULLED}\nserve: {{port: {PORT}}}\nenv: {{HF_HUB_OFFLINE: null}}\n"
            f"target: {{model: some/tiny-target, revision: {commits['target']}}}\ndraft: {{model: some/tiny-eagle3}}\n"
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
    heads.drafts_and_the_target_accepts(done.json["answer"], k=3)
    heads.some_of_it_is_rejected(done.json["answer"])
    heads.needs_only_the_patches_of_a_cpu(done.json["report"])
    assert "warning" not in done.err
    assert "not kept" not in done.err, done.err
    assert "the Hub does not answer; the server will use the models in the cache" in done.err
    assert gemmaspec("restart", str(profile), "--dry-run", env=gone).code == 0

    monkeypatch.setenv("GEMMASPEC_STATE", str(STATE))
    assert goods(PULLED) == [True]
    (kept,) = known_goods(PULLED)
    assert commits["target"] in kept.started.server.command
    assert json.loads(kept.files()["speculative-config.json"])["revision"] == commits["draft"]

    with hub_of.serve() as hub:  # where both branches have moved on meanwhile
        moved = {role: hub.add(f"some/{folder}", {"README.md": b"moved"}) for role, folder in folders.items()}
        locked = gemmaspec("lock", str(profile), "--json", env={**env, **hub.environment(home)})
    assert locked.code == 0, locked.err
    pinned = {role: locked.json["lock"][role]["revision"] for role in commits}
    assert pinned == commits, "what runs is pinned, not what the Hub has by now"
    assert moved["draft"] != commits["draft"]
