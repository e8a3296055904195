"""A Compose file as Docker Compose itself reads it: merged, extended and included, with its variables left open."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from gemmaspec.run.engine.lines import clean

_PATIENCE_S: Final = 30
_MOST: Final = 4 * 2**20
_NOTHING_REMOTE: Final = {"COMPOSE_EXPERIMENTAL_GIT_REMOTE": "false", "COMPOSE_EXPERIMENTAL_OCI_REMOTE": "false"}
"""A file that includes another one from the network is refused by Compose then."""


def configured(file: Path) -> tuple[dict[str, Any] | None, str]:
    """Return what `docker compose config` makes of a file; or None and why, empty where Docker Compose is missing.

    No daemon is asked, no variable of this machine is filled in, and nothing is fetched.
    """
    if shutil.which("docker") is None:
        return None, ""
    command = ("docker", "compose", "-f", str(file), "--profile", "*", "config")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COMPOSE_")}
    with tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                [*command, "--no-interpolate", "--format", "json"],
                env=kept | _NOTHING_REMOTE,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                timeout=_PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, f"docker compose config did not answer within {_PATIENCE_S} s"
        except OSError as error:
            return None, f"docker compose config cannot run: {error.strerror}"
        output.seek(0)
        text = output.read(_MOST + 1)
    if done.returncode:
        said = clean(done.stderr.decode("utf-8", "replace").strip().replace("\n", " "))
        is_missing = "is not a docker command" in said or "unknown shorthand flag" in said
        return None, "" if is_missing else _without_quotes(said)[-300:]
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None, "docker compose config wrote no JSON, or more than 4 MiB"
    if isinstance(document, dict):
        return (document, "")
    return (None, "docker compose config wrote no map")


def _without_quotes(said: str) -> str:
    """Return Compose's error without what it quotes: a line of .env that it cannot read may be a secret."""
    return re.sub(r"\"[^\"]*\"?|'[^']*'?|`[^`]*`?", "…", said)
