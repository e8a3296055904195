"""Which probes decide at a start: those that told wrong fixes from right ones, and only as they were then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gemmaspec.check.proof.prove import Probes
from gemmaspec.core import data
from gemmaspec.core.patching.judged import LEAST_RIGHT, LEAST_WRONG, deciding_probe, judgement_of, probe_files
from gemmaspec.core.patching.patch import load_patches
from gemmaspec.core.patching.plan import compile_plan
from tests.support import vllm_trees as fake
from tests.support.judged_fixes import JUDGED, NOT_JUDGED, PUBLISHED
from tests.support.judging import judge, write_judgement

SHIPPED = load_patches()
OF_DEFECTS = [name for name, patch in SHIPPED.items() if not patch.is_speed]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = fake.write_patch(tmp_path / "patches")
    (made / "probe.py").write_text("def probe():\n    return False, 'no bug'\n")
    write_judgement(made)
    return made


def planned(folder: Path) -> dict[str, Any]:
    """The patch's entry of a plan."""
    patches = load_patches(folder.parent)
    (entry,) = compile_plan("p", [folder.name], [], [], patches)["patches"]
    return dict(entry)


def test_a_judged_probe_is_in_the_plan(folder: Path) -> None:
    assert planned(folder)["probe"] == (folder / "probe.py").read_text()


@pytest.mark.parametrize(
    "changed",
    [
        {"called_closed": 1},
        {"wrong": 11},
        {"right": 4},
        {"recognised": 3},
        {"probe": "0" * 64},
        {"releases": []},
        {"schema": 2},
        {"unknown": 1},
        {"wrong": "many"},
    ],
)
def test_a_probe_that_did_not_pass_decides_nothing(folder: Path, changed: dict[str, Any]) -> None:
    write_judgement(folder, **changed)
    assert "probe" not in planned(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "9" * 5000])
def test_a_damaged_result_decides_nothing(folder: Path, text: str) -> None:
    (folder / "judged.json").write_text(text)
    assert "probe" not in planned(folder)


def test_a_probe_that_was_changed_or_never_judged_decides_nothing(folder: Path) -> None:
    (folder / "probe.py").write_text((folder / "probe.py").read_text() + "# more\n")
    assert "probe" not in planned(folder)
    write_judgement(folder)
    assert "probe" in planned(folder)
    (folder / "judged.json").unlink()
    assert "probe" not in planned(folder)


def test_what_a_probe_imports_is_judged_and_planned_with_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/helper.py").write_text("import deeper\n")
    (tmp_path / "shared/deeper.py").write_text("X = 1\n")
    monkeypatch.setattr(data, "PROBES", tmp_path / "shared")
    (folder / "probe.py").write_text("from helper import deeper\nimport json\n")
    write_judgement(folder)
    assert [file["name"] for file in planned(folder)["beside"]] == ["deeper.py", "helper.py"]
    (tmp_path / "shared/deeper.py").write_text("X = 2\n")
    assert "probe" not in planned(folder)


def test_every_probe_that_was_judged_is_as_it_was_then() -> None:
    judged = {name for name in SHIPPED if (SHIPPED[name].folder / "judged.json").is_file()}
    assert judged == set(JUDGED), "run tools/judge_probes.py"
    for name in judged:
        assert judgement_of(SHIPPED[name].folder), f"{name}: its probe was changed: run tools/judge_probes.py {name}"
        assert deciding_probe(SHIPPED[name].folder), name


def test_every_probe_is_judged_or_it_is_said_why_not() -> None:
    assert {*JUDGED, *NOT_JUDGED} == {*OF_DEFECTS}
    assert not {*JUDGED} & {*NOT_JUDGED}
    for name in (name for name, why in NOT_JUDGED.items() if why == PUBLISHED):
        assert all(",<" in variant.versions for variant in SHIPPED[name].text.variants), f"{name}: judge its probe"


@pytest.mark.parametrize("name", OF_DEFECTS)
def test_a_shipped_probe_names_what_it_needs(name: str) -> None:
    files = probe_files(SHIPPED[name].folder)
    assert files
    assert "__file__" not in files.text, "the launcher puts it elsewhere"


@pytest.mark.network
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in JUDGED])
def test_a_probe_that_decides_knows_wrong_fixes(name: str, probes: Probes) -> None:
    found = judge(name, probes)
    assert found.called_closed == []
    assert found.wrong >= LEAST_WRONG
    assert found.right >= LEAST_RIGHT
    assert len(found.missed) * 5 <= found.right, found.missed
