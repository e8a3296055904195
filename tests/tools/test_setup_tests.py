"""tools/setup-tests.sh: what is missing is installed one by one, and a reason ends it with 4."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.small_programs import fake_program, linked

SCRIPT = Path(__file__).parent.parent.parent / "tools" / "setup-tests.sh"
SMALL = ("bash", "env", "mktemp", "rm", "chmod", "tar", "install", "cat")
FAKE = """\
echo "$*" >>"$ASKED"
case "$*" in
  *$REFUSED*) exit 100 ;;
  *download*) : >prometheus_1_all.deb ;;
esac
"""
PACKAGE = """\
mkdir -p usr/bin && echo promtool >usr/bin/promtool && tar -c ./usr/bin/promtool
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A PATH of an empty Debian: FAKES of apt-get and dpkg-deb that note what they are asked, and root."""
    folder = linked(tmp_path / "bin", (*SMALL, "mkdir", "sh"))
    for name, text in {"apt-get": FAKE, "dpkg-deb": PACKAGE, "id": "echo 0"}.items():
        fake_program(folder, name, text)
    return folder


def setup(programs: Path, refused: str = "nothing at all") -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the script where no program of Debian is seen; return also what apt-get was asked."""
    asked = programs.parent / "asked"
    asked.touch()
    text = SCRIPT.read_text()
    assert "/usr/sbin/" in text
    hidden = programs.parent / "setup-tests.sh"  # this machine may have the programs in /usr/sbin
    hidden.write_text(text.replace("/usr/sbin/", f"{programs.parent}/sbin/"))
    (programs.parent / "sbin").mkdir()
    (programs.parent / "made" / "bin").mkdir(parents=True)
    own = {"PATH": str(programs), "ASKED": str(asked), "REFUSED": refused, "PREFIX": f"{programs.parent}/made"}
    done = subprocess.run(["bash", hidden], env={**os.environ, **own}, capture_output=True, text=True, check=False)
    return done, asked.read_text().splitlines()


def test_what_is_missing_is_installed_without_a_daemon(programs: Path) -> None:
    done, asked = setup(programs)
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in asked] == ["-qq", "chromium", "haproxy", "prometheus"]
    assert not any("install" in line and "prometheus" in line for line in asked)
    assert (programs.parent / "made" / "bin" / "promtool").is_file()
    assert list((programs.parent / "sbin").iterdir()) == []


def test_one_that_cannot_be_had_is_named_and_the_others_are_installed(programs: Path) -> None:
    done, asked = setup(programs, refused="chromium")
    assert done.returncode == 4
    assert "apt-get cannot install chromium" in done.stderr
    assert asked[-1].endswith("prometheus")


def test_without_debian_it_says_what_is_missing(programs: Path) -> None:
    (programs / "apt-get").unlink()
    done, _ = setup(programs)
    assert (done.returncode, done.stdout) == (4, "")
    assert "no chromium haproxy promtool here" in done.stderr


def test_where_nothing_is_missing_nothing_is_asked(programs: Path) -> None:
    for name in ("chromium", "haproxy", "promtool"):
        shutil.copy(programs / "id", programs / name)
    assert setup(programs)[1] == []
