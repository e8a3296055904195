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
    ("without its draft", alone, "none"),
    (f"vLLM {RELEASE} as released, MTP with 4 drafts", released, "released"),
    ("as it ships: the same draft, patches, Triton", shipped, "ships"),
)
"""Its words, its cells, and its class in the picture's style."""
WIDTH, LEFT, BAR, GAP, SPAN = 440, 10, 19, 12, 245
STYLE: Final = """\
.paper{fill:#fff}text{fill:#24292f}.none{fill:#6e7781}.released{fill:#b3640f}.ships{fill:#14805a}
@media(prefers-color-scheme:dark){.paper{fill:#0f1318}text{fill:#e6e9ed}.none{fill:#8b949e}.released{fill:#e08a2e}.ships{fill:#2fa877}}"""
"""Of a light page and a dark one; a picture in a page sees which one the reader prefers."""


def _text(x: float, y: float, said: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {more}>{said}</text>'


def _legend() -> list[str]:
    parts, y = [], 66.0
    for name, _, arm in ARMS:
        parts.append(f'<rect x="{LEFT}" y="{y - 11:g}" width="12" height="12" class="{arm}"/>')
        parts.append(_text(LEFT + 18, y, name))
        y += 20
    return parts


def _bars(context: int, requests: int) -> list[tuple[float, str]]:
    """Return tokens per second and class of each arm that has this cell, that without the draft first."""
    bars = []
    for _, which, arm in ARMS:
        with contextlib.suppress(LookupError):
            bars.append((cell(which, context, requests), arm))
    return bars


def draw() -> str:
    """Return the picture. Each group is scaled by its speed without a draft, and bars carry tokens per second."""
    groups = {load: _bars(*load) for load in CELLS}
    parts, y = _legend(), 138.0
    most = max(value / bars[0][0] for bars in groups.values() for value, _ in bars)
    for (context, requests), bars in groups.items():
        base, many = bars[0][0], "request" if requests == 1 else "requests"
        parts.append(_text(LEFT, y, f"after {context:,} tokens, {requests} {many}", 'font-weight="bold"'))
        y += 7
        for value, arm in bars:
            width = SPAN * value / base / most
            parts.append(f'<rect x="{LEFT}" y="{y:g}" width="{width:.1f}" height="{BAR - 3}" class="{arm}"/>')
            parts.append(_text(LEFT + width + 6, y + BAR - 6, f"{value:.0f} tok/s, {value / base:.2f} times"))
            y += BAR
        y += GAP + 10
    title = f"Gemma 4 31B (NVFP4) on an {MACHINE.upper()}, vLLM {RELEASE}"
    head = [
        _text(LEFT, 22, title, 'font-weight="bold"'),
        _text(LEFT, 41, "nvidia-31b-mtp, decoding, random acceptance"),
    ]
    size = f'width="{WIDTH}" height="{y - 14:g}" viewBox="0 0 {WIDTH} {y - 14:g}"'
    body = "\n".join([f'<rect width="{WIDTH}" height="{y - 14:g}" class="paper"/>', *head, *parts])
    style = f"<style>\n{STYLE}\n</style>"
    opened = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="15">'
    return f"{opened}\n{style}\n{body}\n</svg>\n"


def main() -> int:
    """Write the picture; with --check only say whether it is up to date."""
    picture = draw()
    if "--check" in sys.argv:
        return int(TARGET.read_text() != picture)
    TARGET.write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
