"""What CI runs: README's commands in a clone called gemmaspec. Its `make` targets are fakes here, and git is real."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
MAKEFILE = """\
demo:
\t@mkdir -p .venv/bin
\t@printf '#!/bin/sh\\necho gemmaspec "$$@" "$$GEMMASPEC_STATE" >>../said\\ncp ../said "$(SEEN)"\\n' >.venv/bin/gemmaspec
\t@chmod +x .venv/bin/gemmaspec
\t@echo "demo in $$(basename $$PWD)"; test ! -t 0
\t@test "$(FAILS)" != demo
test:
\t@echo "1 passed in 0.1s"
\t@test "$(FAILS)" != test
"""


def ci(folder: Path, fails: str = "") -> subprocess.CompletedProcess[str]:
    """Run .ci/run in a checkout of its own, with targets of which one may fail."""
    checkout = folder / "ä checkout"
    (checkout / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", checkout / ".ci" / "run")
    shutil.copy(ROOT / "README.md", checkout / "README.md")
    (checkout / "Makefile").write_text(MAKEFILE)
    git = ["git", "-c", "user.name=n", "-c", "user.email=n@example.invalid", "-C", checkout]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"})
    # the suite itself runs under `make test`, which would make these a sub-make that says where it is
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment = {**outside, "TMPDIR": str(folder), "CI": "true", "FAILS": fails, "SEEN": str(folder / "seen")}
    return subprocess.run([checkout / ".ci" / "run"], capture_output=True, text=True, check=False, env=environment)


def test_it_runs_the_commands_of_readme_in_a_clone_called_gemmaspec(tmp_path: Path) -> None:
    done = ci(tmp_path)
    assert done.returncode == 0, done.stderr
    steps = [line.partition("    #")[0] for line in done.stdout.splitlines() if line.startswith("== ")]
    assert steps == [
        "== make demo",
        "== GEMMASPEC_STATE=.tools/state .venv/bin/gemmaspec down --all",
        "== make test",
    ]
    assert "demo in gemmaspec" in done.stdout
    assert done.stdout.endswith("1 passed in 0.1s\n"), "nothing follows pytest's closing line"
    assert (tmp_path / "seen").read_text().startswith("gemmaspec down --all .tools/state\n")
    assert not list(tmp_path.glob("tmp.*")), "the clone is gone"


@pytest.mark.parametrize("fails", ["demo", "test"])
def test_a_step_that_fails_is_its_exit_status_and_what_runs_is_stopped(fails: str, tmp_path: Path) -> None:
    done = ci(tmp_path, fails)
    assert done.returncode != 0
    assert ("== make test" in done.stdout) == (fails == "test")
    assert "gemmaspec down --all .tools/state\n" in (tmp_path / "seen").read_text()
    assert not list(tmp_path.glob("tmp.*"))
