"""Draw docs/assets/patches-for-speed.svg: tokens per second of no draft, a draft, and each patch, from evidence.json.

    python3 tools/speed_chart.py

The cells are those of the patches with evidence, at the loads that CELLS names. Nothing is drawn that has no cell.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
TARGET: Final = ROOT / "docs" / "assets" / "patches-for-speed.svg"
SPLIT, GEOMETRY, LAUNCH = "triton-verify-split-kv", "triton-group-geometry", "triton-launch-params"
RELEASE: Final = "0.32.0"
CELLS: Final = ((256, 1), (8192, 1), (8192, 4), (8192, 8), (32768, 1))
"""Prompt tokens and requests at once."""
ARMS: Final = (
    ("no draft", "none", (), "#9aa5b1"),
    ("MTP, 4 drafts", "mtp", (), "#d9822b"),
    (f"+ {SPLIT}", "mtp", (SPLIT,), "#2b7bb9"),
    (f"+ {GEOMETRY}", "mtp", (GEOMETRY, SPLIT), "#1f9e6e"),
)
WIDTH, LEFT, BAR, GAP, SPAN = 800, 190, 17, 16, 460


def rows() -> dict[tuple[str, tuple[str, ...], int, int], float]:
    """Return tokens per second by method, patches, prompt and requests; of a cell that several runs have, the last."""
    found: dict[tuple[str, tuple[str, ...], int, int], float] = {}
    for patch in (SPLIT, GEOMETRY, LAUNCH):
        file = json.loads((ROOT / "patches" / patch / "evidence.json").read_text())
        cells: list[dict[str, Any]] = [row for run in file["runs"] for row in run["rows"] if row["vllm"] == RELEASE]
        for row in cells:
            found[row["method"], tuple(row["patches"]), row["context"], row["concurrency"]] = row["tokens_per_second"]
    return found


def _text(x: float, y: float, said: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {more}>{said}</text>'


def _legend() -> list[str]:
    parts, x = [], 10.0
    for name, _, _, colour in ARMS:
        parts.append(f'<rect x="{x:g}" y="34" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(x + 17, 44.5, name))
        x += 38 + 7.1 * len(name)
    return parts


def draw() -> str:
    """Return the picture. Each group is scaled by its speed without a draft, and bars carry tokens per second."""
    measured, parts, y = rows(), _legend(), 66.0
    most = max(value / measured["none", (), *key[2:]] for key, value in measured.items() if key[2:] in CELLS)
    for context, requests in CELLS:
        base = measured["none", (), context, requests]
        arms = [(measured.get((method, patches, context, requests)), colour) for _, method, patches, colour in ARMS]
        present = [(value, colour) for value, colour in arms if value is not None]
        many = "request" if requests == 1 else "requests"
        parts.append(_text(10, y + len(present) * BAR / 2 + 4, f"{context:,} tokens, {requests} {many}"))
        for value, colour in present:
            width = SPAN * value / base / most
            parts.append(f'<rect x="{LEFT}" y="{y:g}" width="{width:.1f}" height="{BAR - 3}" fill="{colour}"/>')
            parts.append(_text(LEFT + width + 6, y + BAR - 6, f"{value:.0f} tok/s, {value / base:.2f} times"))
            y += BAR
        y += GAP
    title = "Gemma 4 31B (NVFP4) on an H200, vLLM 0.32.0, TRITON_ATTN: decoding, random acceptance"
    head = _text(10, 20, title, 'font-weight="bold"')
    style = 'font-family="sans-serif" font-size="12.5" fill="#333"'
    size = f'width="{WIDTH}" height="{y:g}" viewBox="0 0 {WIDTH} {y:g}"'
    body = "\n".join([f'<rect width="{WIDTH}" height="{y:g}" fill="white"/>', head, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{body}\n</svg>\n'


def main() -> int:
    """Write the picture; with --check only say whether it is up to date."""
    picture = draw()
    if "--check" in sys.argv:
        return int(TARGET.read_text() != picture)
    TARGET.write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
