"""The programs that route between replicas: vllm-router in an environment of its own, HAProxy from the system."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gemmaspec.errors import EnvironmentMissing
from gemmaspec.files import state_dir, unwritable, write_whole
from gemmaspec.profile.router import RouterKind
from gemmaspec.runtime.lock import held_lock
from gemmaspec.runtime.pip_settings import uv_environment
from gemmaspec.runtime.uv import Uv

VLLM_ROUTER: Final = "0.1.17"
"""The release of vllm-router that is installed; its commands and flags were checked."""
_MARKER: Final = "complete"


def vllm_router_dir() -> Path:
    """Return the folder of vllm-router's environment, whether it exists or not."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (state_dir() / "routers").resolve() / f"vllm-router-{VLLM_ROUTER}-py{python}"


def router_program(kind: RouterKind) -> str | None:
    """Return the path of a router's program; None if it is not on this machine."""
    if kind == "haproxy":
        # Debian puts it where only root looks.
        return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
    folder = vllm_router_dir()
    return str(folder / "bin" / "vllm-router") if (folder / _MARKER).is_file() else None


def ensure_router(kind: RouterKind, *, progress: Callable[[str], None]) -> str:
    """Return the path of a router's program; install vllm-router if it is missing. Raise EnvironmentMissing."""
    if found := router_program(kind):
        return found
    if kind == "haproxy":
        raise EnvironmentMissing(
            "the router of replicas, haproxy, is not installed", hint="sudo apt-get install haproxy"
        )
    folder = vllm_router_dir()
    waiting = "waiting for another gemmaspec process that installs vllm-router"
    with held_lock(folder.parent / f".{folder.name}.lock", waiting=lambda: progress(waiting)) as lock:
        if router_program(kind) is None:
            _install(folder, Uv(folder=folder, environment=uv_environment(), progress=progress, keep_open=(lock,)))
    return str(folder / "bin" / "vllm-router")


def _install(folder: Path, uv: Uv) -> None:
    """Install into a folder; one that was interrupted has no marker and begins anew."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise unwritable(folder, error) from None
    try:
        uv.progress(f"installing vllm-router {VLLM_ROUTER}")
        uv.run("venv", "--allow-existing", "--no-project", "--python", sys.executable, str(folder))
        uv.run("pip", "install", "--python", str(folder / "bin" / "python"), f"vllm-router=={VLLM_ROUTER}")
        write_whole(folder / _MARKER, f"{VLLM_ROUTER}\n")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
