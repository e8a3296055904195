"""`patch verify --running` and `status` against real servers whose files are changed behind their back."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import real
from tests.real import H1, H2, H3A, gemmaspec, up

PATH = "vllm/v1/worker/utils.py"
ENGINES = [
    pytest.param("process", marks=pytest.mark.real_process),
    pytest.param(
        "docker",
        marks=[
            pytest.mark.real_docker,
            pytest.mark.skipif(not real.docker_answers(), reason="no Docker engine with Compose v2 answers"),
        ],
    ),
]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    started = up(request.param)
    assert started.code == 0, started.err
    yield request.param
    gemmaspec("down", "tiny-cpu")


def spoil(engine: str) -> None:
    """Append a line to a patched file of the overlay."""
    if engine == "process":
        file = real.STATE / "stacks/tiny-cpu/run/overlay" / PATH
        file.write_text(file.read_text() + "\n# mine\n")
        return
    listed = ["docker", "ps", "-q", "--filter", "label=com.docker.compose.project=gemmaspec-tiny-cpu"]
    container = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()[0]
    command = f"echo '# mine' >> /run/gemmaspec/overlay/{PATH}"
    subprocess.run(["docker", "exec", container, "sh", "-c", command], check=True)


def test_a_real_server_is_compared_with_its_report_and_a_changed_file_is_named(engine: str) -> None:
    whole = gemmaspec("patch", "verify", "--running", "tiny-cpu", "--json")
    assert whole.code == 0, whole.err
    assert {row["patch"]: row["state"] for row in whole.json["results"]} == dict.fromkeys((H1, H2, H3A), "applied")
    status = gemmaspec("status", "tiny-cpu", "--json")
    assert status.code == 0
    (stack,) = status.json["stacks"]
    assert stack["changed"] == []
    files = [file for patch in stack["report"]["patches"] for file in patch["files"]]
    assert [file["pristine"] for file in files] == [True, True, True], "the installed vLLM is as it was released"

    spoil(engine)
    changed = gemmaspec("patch", "verify", "--running", "tiny-cpu", "--json")
    assert (changed.code, changed.json["ok"]) == (5, False)
    states = {row["patch"]: row["state"] for row in changed.json["results"]}
    assert states == {H1: "applied", H2: "conflict", H3A: "applied"}
    told = gemmaspec("status", "tiny-cpu")
    assert told.code == 5
    assert f"CHANGED   {PATH} (overlay)" in told.out

    plan = Path(real.STATE / "stacks/tiny-cpu/plan.json")
    kept = plan.read_text()
    plan.write_text(kept.replace('"required": true', '"required": false', 1))
    assert "changed after it was rendered" in gemmaspec("status", "tiny-cpu").out
    plan.write_text(kept)
