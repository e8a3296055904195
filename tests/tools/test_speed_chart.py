"""The picture of README.md is made from the cells of the patches for speed."""

from __future__ import annotations

from tools import speed_chart


def test_the_picture_shows_what_evidence_json_says() -> None:
    assert speed_chart.TARGET.read_text() == speed_chart.draw(), "run: python3 tools/speed_chart.py"
