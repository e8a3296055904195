"""Install this checkout with its development tools into the environment that runs this file.

    .venv/bin/python tools/install.py          # the group dev of pyproject.toml
    .venv/bin/python tools/install.py docs     # another group

What is installed is what uv.lock names, and each file has the hash that stands there, whatever index it comes from:
those in pip's settings, or PyPI. uv installs in seconds what takes pip a minute, whatever pip's age. This script runs
before anything is installed, so it imports only the standard library. `make lock` renews uv.lock.
"""

from __future__ import annotations

import ast
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def main() -> int:
    """Install, and return the exit code of the step that failed."""
    translate = runpy.run_path(str(ROOT / "gemmaspec" / "run" / "runtime" / "pip_settings.py"))["translate"]
    uv = [sys.executable, "-m", "uv"]
    install = [*uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", sys.executable]
    try:
        subprocess.run([*PIP, "install", "-qq", "uv"], check=True)
        environment = translate(pip_settings(), os.environ)
        with tempfile.TemporaryDirectory() as folder:
            locked = Path(folder) / "locked.txt"
            locked.write_bytes(exported(uv, sys.argv[1] if len(sys.argv) > 1 else "dev"))
            words = [*install, "--require-hashes", "--requirements", str(locked)]
            subprocess.run(words, cwd=ROOT, env=environment, check=True)
        subprocess.run([*install, "--no-deps", "--editable", "."], cwd=ROOT, env=environment, check=True)
        # uv compiles what it installs, and an editable install only points here.
        subprocess.run([sys.executable, "-m", "compileall", "-q", "gemmaspec"], cwd=ROOT, check=True)
    except subprocess.CalledProcessError as failed:
        return int(failed.returncode)
    return 0


def exported(uv: Sequence[str], group: str) -> bytes:
    """Return the packages of uv.lock that gemmaspec and a group of pyproject.toml need, with their hashes."""
    words = [*uv, "export", "--quiet", "--no-config", "--frozen", "--no-emit-project", "--no-default-groups"]
    return subprocess.run([*words, "--group", group], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout


def pip_settings() -> dict[str, str]:
    """Return pip's settings by name; the environment overrides [install], which overrides [global]."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True).stdout
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in found:
            found[section][name] = str(ast.literal_eval(value))
    return found["global"] | found["install"] | found[":env:"]


if __name__ == "__main__":
    sys.exit(main())
