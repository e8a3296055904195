"""Defaults by machine: the rule against what vLLM's own create_engine_config() resolved (tools/oracle.py)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.core.releases.batch import asked, batch_defaults
from gemmaspec.core.releases.facts import newest, releases

ENGINE = Path(__file__).parent.parent.parent / "tools" / "oracle_engine.py"
ANSWERS = [(machine, release) for machine, rows in asked().items() for release in rows]
MEDIA = 2496


def machines() -> dict[str, dict[str, Any]]:
    spec = importlib.util.spec_from_file_location("oracle_engine", ENGINE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, dict[str, Any]] = module.MACHINES
    return found


MACHINES = machines()
DEFAULTS = [name for name in MACHINES if name not in ("l40s", "rtx-3090", "rtx-5090")]
"""The machines that releases are asked about their defaults for; the others are asked only about attention."""


@pytest.mark.parametrize(("machine", "release"), ANSWERS)
def test_the_rule_says_what_vllm_resolved(machine: str, release: str) -> None:
    facts, row = MACHINES[machine], asked()[machine][release]
    capability = ".".join(map(str, facts["capability"])) if facts["capability"] else None
    found = batch_defaults(
        release, memory=facts["memory"], name=facts["name"], capability=capability, cpu=machine == "cpu"
    )
    assert row["sequences"] == found.sequences
    assert row["E2B tokens"] == found.tokens
    assert row["31B tokens"] in (found.tokens, max(found.tokens, MEDIA))


def test_every_kind_of_machine_was_asked_about() -> None:
    assert set(asked()) == set(DEFAULTS)
    assert newest() in asked()["cpu"]


@pytest.mark.parametrize("machine", [name for name in DEFAULTS if name != "cpu"])
def test_every_release_of_the_table_was_asked(machine: str) -> None:
    assert set(releases()) == set(asked()[machine]), "make oracle"
