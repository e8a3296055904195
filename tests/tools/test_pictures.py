"""The pictures of the pages: whole, readable on a phone, and of enough contrast on a light page and a dark one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parent.parent.parent
ASSETS: Final = ROOT / "docs" / "assets"
PICTURES: Final = sorted(ASSETS.glob("*.svg"))
CHROMIUM: Final = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
PHONE: Final = 358
"""Pixels of a phone's 390 that a page leaves to a picture."""


def luminance(colour: str) -> float:
    """The relative luminance of #rgb or #rrggbb (WCAG 2.1)."""
    digits = colour.removeprefix("#")
    if len(digits) == 3:
        digits = "".join(digit * 2 for digit in digits)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def colours(picture: Path, *, dark: bool) -> dict[str, str]:
    """Selector → fill, on a light page or on a dark one."""
    style = picture.read_text().partition("<style>")[2].partition("</style>")[0]
    light, _, night = style.partition("@media(prefers-color-scheme:dark)")
    found = dict(re.findall(r"([.\w]+)\{fill:(#[0-9a-f]+)", light))
    return found | dict(re.findall(r"([.\w]+)\{fill:(#[0-9a-f]+)", night)) if dark else found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("picture", PICTURES, ids=lambda one: one.stem)
def test_words_have_enough_contrast(picture: Path, dark: bool) -> None:
    found = colours(picture, dark=dark)
    paper = found.pop(".paper")
    assert contrast(found.pop("text"), paper) >= 4.5
    on_boxes = found.pop(".name", None)
    for selector, colour in found.items():
        if selector == ".fails":
            assert contrast(colour, paper) >= 4.5
        elif on_boxes:
            assert contrast(on_boxes, colour) >= 4.5, selector
        else:  # a bar: WCAG asks 3 of what is no text
            assert contrast(colour, paper) >= 3, selector


def test_a_picture_on_a_dark_page_is_another_one() -> None:
    for picture in PICTURES:
        assert (
            luminance(colours(picture, dark=True)[".paper"]) < 0.05 < luminance(colours(picture, dark=False)[".paper"])
        )


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is here (tools/setup-tests.sh installs it on Debian)")
@pytest.mark.parametrize("picture", PICTURES, ids=lambda one: one.stem)
def test_a_real_browser_cuts_nothing_and_its_words_are_readable_on_a_phone(picture: Path, tmp_path: Path) -> None:
    (tmp_path / "ask.html").write_text(
        f'<div style="width:{PHONE}px">{picture.read_text()}</div><pre id="said"></pre><script>'
        'const s=document.querySelector("svg"),v=s.viewBox.baseVal;s.style.maxWidth="100%";s.style.height="auto";'
        "said.textContent=JSON.stringify({width:v.width,height:v.height,shown:s.getBoundingClientRect().width,"
        'words:[...s.querySelectorAll("text")].map(t=>{const b=t.getBBox();return [b.x,b.y,b.x+b.width,b.y+b.height,'
        "parseFloat(getComputedStyle(t).fontSize)]})})</script>"
    )
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"--user-data-dir={tmp_path / 'browser'}"]
    command = [str(CHROMIUM), *words, (tmp_path / "ask.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found: dict[str, Any] = json.loads(re.findall(r'<pre id="said">(\{.*?\})</pre>', done.stdout)[0])
    assert found["words"]
    for left, top, right, bottom, size in found["words"]:
        assert left >= 0
        assert top >= 0
        assert right <= found["width"]
        assert bottom <= found["height"]
        assert size * found["shown"] / found["width"] >= 11
