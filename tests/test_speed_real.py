"""Patches for speed on a real server: one that has no place is left out, one that kills it is left out the next time."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmaspec.serve.observe import speed_files
from tests import placed, real
from tests.real import H1, H2, H3A, PROFILE, gemmaspec, up
from tests.speed_patches import write_speed_patch

SCHEDULER = "vllm/v1/core/sched/scheduler.py"
LINE = "        scheduled_new_reqs: list[Request] = []"
DIES = f"--- a/{SCHEDULER}\n+++ b/{SCHEDULER}\n@@ -604 +604,2 @@\n {LINE}\n+        no_such_name  # a mistake\n"


@pytest.mark.real_process
@pytest.mark.xdist_group("apart")
def test_a_real_server_is_started_again_without_a_patch_for_speed_that_kills_it(tmp_path: Path) -> None:
    dies = write_speed_patch(tmp_path, "dies", pays="", diff=DIES, path=SCHEDULER, scope="Scheduler.schedule")
    (site,) = (real.STATE / "runtimes").glob("cpu-0.32.0-*/lib/python*/site-packages")
    placed.record(dies, {SCHEDULER: (site / SCHEDULER).read_text()})  # without known places it would be left out
    write_speed_patch(tmp_path, "no-place", pays="", path=SCHEDULER, scope="Scheduler.schedule", old="        gone()")
    patches, env = ("--set", "patches.speed=[dies, no-place]"), {"GEMMASPEC_PATCHES": str(tmp_path)}
    try:
        done = up("process", *patches, env=env)
        assert done.code == 0, done.err
        assert "its log has a traceback through code of dies" in done.err
        assert f"starting {PROFILE} again without dies" in done.err
        rows = {row["patch"]: row for row in done.json["report"]["patches"]}
        assert {name: rows[name]["state"] for name in (H1, H2, H3A)} == dict.fromkeys((H1, H2, H3A), "applies")
        assert "dies" not in rows
        log = (real.STATE / "stacks" / PROFILE / "failed.log").read_text()
        assert "NameError: name 'no_such_name' is not defined" in log
        assert "patch no-place: left-out" in log
        status = gemmaspec("status", PROFILE, "--json", env=env).json["stacks"][0]
        assert status["without_speed_patches"] is True
        assert not speed_files((real.STATE / "stacks" / PROFILE / "plan.json").read_text())
    finally:
        gemmaspec("down", PROFILE, env=env)
