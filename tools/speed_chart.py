"""Draw docs/assets/patches-for-speed.svg: tokens per second as shipped, without the draft, released.

    python3 tools/speed_chart.py

The cells are those of README's first figures, at the loads that CELLS names. Nothing is drawn that has no cell.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from tools.headline import MACHINE, RELEASE, alone, cell, released, shipped

TARGET: Final = Path(__file__).parent.parent / "docs" / "assets" / "patches-for-speed.svg"
CELLS: Final = ((256, 1), (256, 4), (8192, 1), (8192, 4), (8192, 8))
"""Prompt tokens and requests at once."""
ARMS: Final = (
    ("without its draft", alone, "#9aa5b1"),
    (f"vLLM {RELEASE} as released, MTP with 4 drafts", released, "#d9822b"),
    ("as it ships: the same draft, patches, Triton", shipped, "#1f9e6e"),
)
WIDTH, LEFT, BAR, GAP, SPAN = 800, 190, 17, 16, 460


def _text(x: float, y: float, said: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {more}>{said}</text>'


def _legend() -> list[str]:
    parts, x = [], 10.0
    for name, _, colour in ARMS:
        parts.append(f'<rect x="{x:g}" y="34" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(x + 17, 44.5, name))
        x += 38 + 7.1 * len(name)
    return parts


def _bars(context: int, requests: int) -> list[tuple[float, str]]:
    """Return tokens per second and colour of each arm that has this cell, that without the draft first."""
    bars = []
    for _, which, colour in ARMS:
        with contextlib.suppress(LookupError):
            bars.append((cell(which, context, requests), colour))
    return bars


def draw() -> str:
    """Return the picture. Each group is scaled by its speed without a draft, and bars carry tokens per second."""
    groups = {load: _bars(*load) for load in CELLS}
    parts, y = _legend(), 66.0
    most = max(value / bars[0][0] for bars in groups.values() for value, _ in bars)
    for (context, requests), bars in groups.items():
        base, many = bars[0][0], "request" if requests == 1 else "requests"
        parts.append(_text(10, y + len(bars) * BAR / 2 + 4, f"{context:,} tokens, {requests} {many}"))
        for value, colour in bars:
            width = SPAN * value / base / most
            parts.append(f'<rect x="{LEFT}" y="{y:g}" width="{width:.1f}" height="{BAR - 3}" fill="{colour}"/>')
            parts.append(_text(LEFT + width + 6, y + BAR - 6, f"{value:.0f} tok/s, {value / base:.2f} times"))
            y += BAR
        y += GAP
    title = f"nvidia-31b-mtp (Gemma 4 31B, NVFP4) on an {MACHINE.upper()}, vLLM {RELEASE}: decoding, random acceptance"
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
