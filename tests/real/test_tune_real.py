"""`gemmaspec tune` with real servers: the tiny pair against its target alone, and what `up` says of the answer."""

from __future__ import annotations

import pytest

from gemmaspec.core.profile.load import load_profile
from gemmaspec.serve.up import tuned_remark, what_runs
from tests.support import real

pytestmark = pytest.mark.real_process


def test_the_tiny_pair_is_tuned_and_runs_on_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two starts: the target alone, and k=4. A round more would need a third."""
    few = ("--k", "4", "--concurrency", "2", "--stages", "1", "--each", "1", "--category", "chat", "--max-tokens", "32")
    done = real.gemmaspec(
        *("tune", real.PROFILE, "--no-others", "--engine", "process", "--budget", "20m", "--repeats", "0", "--json"),
        *("--set", f"serve.port={real.free_port()}", *few),
        timeout=1500,
    )
    assert done.code == 0, done.err
    tried = done.json["tried"]
    assert {one["arm"] for one in tried["cells"]} == {f"{real.PROFILE}/none/0", f"{real.PROFILE}/draft_model/4"}
    assert set(tried["starts"]) == {one["arm"] for one in tried["cells"]}
    rates = {one["arm"].split("/")[1]: one["tokens_per_second"] for one in tried["cells"]}
    assert all(one["acceptance"][0] > 0 for one in tried["cells"] if "/none/" not in one["arm"])
    faster = rates["draft_model"] > rates["none"] * 1.01
    assert done.json["choice"]["method"] == ("draft_model" if faster else "none")
    assert real.gemmaspec("status", real.PROFILE).code == 1
    for name, value in real.environment().items():
        if name.startswith("GEMMASPEC_"):
            monkeypatch.setenv(name, value)
    written = load_profile(f"{real.PROFILE}-tuned")
    assert written.profile.tuned
    assert written.profile.tuned.ran["plan"].startswith("sha256:")
    assert "machine, image, vLLM and models are those that were measured" in str(
        tuned_remark(written, what_runs(written, "process"))
    )
