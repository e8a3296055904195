"""Patches for speed on a real server: one that has no place is left out, one that kills it is left out the next time.

The server that then runs has another shape than the tiny pair: `fit` says what its cache is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmaspec.serve.speedless import speed_files
from tests.support import kv_cache, placed, real
from tests.support.real import H2, PROFILE, gemmaspec, up
from tests.support.speed_patches import write_speed_patch

CORE = "vllm/v1/engine/core.py"
LINE = "        # Setup Model."
DIES = f"--- a/{CORE}\n+++ b/{CORE}\n@@ -143 +143,2 @@\n {LINE}\n+        no_such_name  # a mistake\n"
"""Ends the process of the engine before it loads a model, which takes half of a start."""


@pytest.mark.real_process
@pytest.mark.xdist_group("apart")
def test_a_real_server_is_started_again_without_a_patch_for_speed_that_kills_it(tmp_path: Path) -> None:
    dies = write_speed_patch(tmp_path, "dies", pays="", diff=DIES, path=CORE, scope="EngineCore.__init__")
    placed.record(dies, {CORE: (real.cpu_site() / CORE).read_text()})  # without known places it would be left out
    write_speed_patch(tmp_path, "no-place", pays="", path=CORE, scope="EngineCore.__init__", old="        gone()")
    patches, env = ("--set", "patches.speed=[dies, no-place]"), {"GEMMASPEC_PATCHES": str(tmp_path)}
    shape = kv_cache.other_shape(tmp_path / "other")
    try:
        done = up("process", *patches, *shape, env=env)
        assert done.code == 0, done.err
        assert "its log has a traceback through code of dies" in done.err
        assert f"starting {PROFILE} again without dies" in done.err
        states = {row["patch"]: row["state"] for row in done.json["report"]["patches"]}
        assert states == {H2: "applies"}, "of those that are required, the one that the target alone needs"
        log = (real.STATE / "stacks" / PROFILE / "failed.log").read_text()
        assert "NameError: name 'no_such_name' is not defined" in log
        assert "patch dies: applies" in log
        assert "patch no-place: left-out" in log
        status = gemmaspec("status", PROFILE, "--json", env=env).json["stacks"][0]
        assert status["without_speed_patches"] is True
        assert not speed_files((real.STATE / "stacks" / PROFILE / "plan.json").read_text())
        kv_cache.compare(shape)
    finally:
        gemmaspec("down", PROFILE, env=env)
