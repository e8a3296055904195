"""changes/: what is written there has the form that a release collects, and the release loses none of it."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Final

import pytest

import changes
import gemmaspec

ROOT: Final = Path(__file__).parent.parent.parent
DAY: Final = datetime.date(2026, 12, 24)
BEFORE: Final = (
    "# Changelog\n\nHow it is written.\n\n## 0.3.0 - 2026-11-28\n\n- first\n\n## 0.2.0 - 2026-11-22\n\n- older\n"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one released version and two changes since."""
    (tmp_path / "changes").mkdir()
    (tmp_path / "gemmaspec").mkdir()
    (tmp_path / "CHANGELOG.md").write_text(BEFORE)
    (tmp_path / "gemmaspec" / "__init__.py").write_text('"""A doc."""\n\n__version__ = "0.3.0"\n')
    (tmp_path / "changes" / "README.md").write_text("# How\n")
    (tmp_path / "changes" / "up-waits.md").write_text("`up` waits for\na port.\n")
    (tmp_path / "changes" / "fit-long.md").write_text(f"`fit`: {'a word ' * 30}ends.\n")
    return tmp_path


def test_every_change_that_is_written_down_here_can_be_collected() -> None:
    assert changes.faults(ROOT) == []


def test_the_newest_section_is_the_package_s_version() -> None:
    assert changes._SECTION.findall((ROOT / "CHANGELOG.md").read_text())[0] == gemmaspec.__version__


def test_a_release_moves_every_change_into_the_changelog(project: Path) -> None:
    changes.release(project, "0.4.0", DAY)
    text = (project / "CHANGELOG.md").read_text()
    head, _, section = text.partition("## 0.4.0 - 2026-12-24\n\n")
    section, _, rest = section.partition("## 0.3.0")
    assert head == "# Changelog\n\nHow it is written.\n\n"
    assert f"## 0.3.0{rest}" == BEFORE.removeprefix(head)
    assert section.startswith("- `fit`: a word")
    assert section.endswith("\n- `up` waits for a port.\n\n")
    assert max(map(len, section.splitlines())) <= changes.WIDTH
    assert [file.name for file in (project / "changes").iterdir()] == ["README.md"]
    assert '__version__ = "0.4.0"' in (project / "gemmaspec" / "__init__.py").read_text()
    assert changes.notes(project, "0.4.0") == section.strip() + "\n"


@pytest.mark.parametrize(
    ("version", "file", "text", "said"),
    [
        ("0.4", "a.md", "One.", "0.4: write a version"),
        ("0.3.0", "a.md", "One.", "already has a section of 0.3.0"),
        ("0.4.0", "a.md", " \n", "changes/a.md is empty"),
        ("0.4.0", "a.md", "## Added\n\nOne.", "changes/a.md: remove the heading"),
        ("0.4.0", "A b.txt", "One.", "name it in lowercase"),
    ],
)
def test_what_cannot_be_released_changes_nothing(project: Path, version: str, file: str, text: str, said: str) -> None:
    (project / "changes" / file).write_text(text)
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    with pytest.raises(changes.Wrong, match=said):
        changes.release(project, version, DAY)
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before


def test_nothing_to_release_is_said(project: Path) -> None:
    for file in changes.fragments(project):
        file.unlink()
    with pytest.raises(changes.Wrong, match="nothing to release"):
        changes.release(project, "0.4.0", DAY)


def test_notes_are_refused_for_a_commit_that_is_no_release(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert changes.main(["notes", "0.3.0"], project) == 1
    assert "changes/ still has fit-long.md, up-waits.md" in capsys.readouterr().err
    assert changes.main(["notes", "0.2.0"], project) == 1
    assert "has version 0.3.0, not 0.2.0" in capsys.readouterr().err
    for file in changes.fragments(project):
        file.unlink()
    assert changes.main(["notes", "0.3.0"], project) == 0
    assert capsys.readouterr().out == "- first\n"
