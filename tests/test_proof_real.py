"""Every shipped patch, proven at both ends of every range of releases: real vLLM modules on a CPU."""

from __future__ import annotations

import pytest

from tests.real import gemmaspec

pytestmark = pytest.mark.network


def test_every_patch_is_proven_at_the_ends_of_its_ranges() -> None:
    done = gemmaspec("patch", "prove", "--json", timeout=1800)
    bad = [(one["patch"], one["release"], one["detail"]) for one in done.json["results"] if not one["ok"]]
    assert (done.code, bad) == (0, [])
    assert len(done.json["results"]) > 50
