"""The page of `predict --html`: whole by itself, safe from what a profile is called, and drawn by a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from gemmaspec.cli.app import run
from gemmaspec.cli.text.predict_page import page

CHROMIUM: Final = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


def asked(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    """The document of a prediction with three prompt lengths and three numbers of requests."""
    assert run(["predict", "nvidia-31b-mtp", "--machine", "h100", "--json", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_html_is_written_beside_the_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.html"
    assert run(["predict", "nvidia-31b-mtp", "--machine", "h100", "--html", str(file)]) == 0
    printed = capsys.readouterr()
    assert f"wrote {file}" in printed.err
    assert printed.out.startswith("nvidia-31b-mtp on h100, from 34 measured cells")
    text = file.read_text()
    assert not re.findall(r"(?:src|href)=", text)
    assert "prefers-color-scheme:dark" in text


def test_a_name_puts_no_markup_into_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    document = asked(capsys)
    hostile = "</script><img src=x onerror=alert(1)>"
    made = page(document | {"profile": hostile, "machine": hostile})
    assert "<img" not in made
    assert made.count("</script>") == page(document).count("</script>")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is here (tools/setup-tests.sh installs it on Debian)")
def test_a_real_browser_draws_a_fan_for_each_number_of_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = asked(capsys)
    other = [row | {"method": "eagle3"} for row in document["rows"] if row["k"] and row["context"] == 256]
    for rows, charts, fans in ((document["rows"], 3, 9), ([*document["rows"], *other], 4, 12)):
        (tmp_path / "p.html").write_text(page(document | {"rows": rows}))
        words = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"--user-data-dir={tmp_path / 'browser'}"]
        command = [str(CHROMIUM), *words, (tmp_path / "p.html").as_uri()]
        drawn = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
        assert (drawn.count("<figure>"), drawn.count("<polygon"), drawn.count("<polyline")) == (charts, fans, fans)
        assert "NaN" not in drawn
    assert "256 prompt tokens, mtp" in drawn
    assert "256 prompt tokens, eagle3" in drawn
