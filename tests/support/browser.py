"""A real headless browser for pages that gemmaspec writes or serves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

CHROMIUM: Final = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
_OPTIONS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip


def document(address: str, profile: Path, *, width: int = 1280, dark: bool = False, wait_ms: int = 3000) -> str:
    """Return a page's document after its scripts have run for `wait_ms` of the browser's time."""
    return _run(profile, width, dark, f"--virtual-time-budget={wait_ms}", "--dump-dom", address)


def picture(address: str, target: Path, profile: Path, *, width: int = 1280, dark: bool = False) -> None:
    """Take a screenshot of a page as PNG."""
    _run(profile, width, dark, "--virtual-time-budget=3000", f"--screenshot={target}", address)


def _run(profile: Path, width: int, dark: bool, *rest: str) -> str:
    assert CHROMIUM
    own = [f"--user-data-dir={profile}", f"--window-size={width},1400"]
    own += ["--blink-settings=preferredColorScheme=0"] if dark else []
    done = subprocess.run([CHROMIUM, *_OPTIONS, *own, *rest], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout
