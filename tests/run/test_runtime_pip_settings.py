"""pip's settings under uv's names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import uv

from gemmaspec.run.runtime import pip_settings
from gemmaspec.run.runtime.pip_settings import translate
from tests.support.vllm_trees import forget_index


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"index-url": "https://one/simple"}, {"UV_DEFAULT_INDEX": "https://one/simple"}),
        ({"find-links": "/wheels /more"}, {"UV_FIND_LINKS": "/wheels,/more"}),
        ({"find-links": "\n/wheels\n/more"}, {"UV_FIND_LINKS": "/wheels,/more"}),
        ({"cert": "/ca.pem"}, {"SSL_CERT_FILE": "/ca.pem"}),
        ({"proxy": "http://proxy:3128"}, {"ALL_PROXY": "http://proxy:3128"}),
        ({"timeout": "15.5"}, {"UV_HTTP_TIMEOUT": "15"}),
        ({"default-timeout": "180"}, {"UV_HTTP_TIMEOUT": "180"}),
        ({"trusted-host": "one two"}, {"UV_INSECURE_HOST": "one two"}),
        ({"no-index": "true", "index-url": "x", "extra-index-url": "y"}, {"UV_DEFAULT_INDEX": "file:///nonexistent"}),
        ({"no-index": "false", "index-url": "https://x"}, {"UV_DEFAULT_INDEX": "https://x"}),
        ({"disable-pip-version-check": "1"}, {}),
    ],
)
def test_each_setting_of_pip_has_its_name_in_uv(settings: dict[str, str], expected: dict[str, str]) -> None:
    assert translate(settings, {}) == expected


def test_more_indexes_are_asked_the_way_pip_asks_them_best_version_first() -> None:
    translated = translate({"extra-index-url": "https://a/simple https://b/simple"}, {})
    assert translated == {
        "UV_INDEX": "https://a/simple https://b/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_what_is_set_for_uv_itself_is_kept() -> None:
    own = {"UV_DEFAULT_INDEX": "https://mine/simple", "SSL_CERT_FILE": "/mine.pem", "HOME": "/root"}
    assert translate({"index-url": "https://theirs/simple", "cert": "/theirs.pem"}, own) == own


def test_the_environment_of_uv_has_what_pip_is_set_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/some/wheels")
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    forget_index()
    assert pip_settings.uv_environment()["UV_FIND_LINKS"] == "/some/wheels"
    forget_index()


def test_the_translation_can_be_used_before_anything_is_installed() -> None:
    code = "import runpy, sys; runpy.run_path(sys.argv[1])['translate']({}, {})"
    command = [sys.executable, "-I", "-S", "-c", code, str(Path(pip_settings.__file__))]
    assert subprocess.run(command, check=False).returncode == 0


def test_without_an_index_uv_finds_nothing_that_is_not_offered_here(tmp_path: Path) -> None:
    environment = translate({"no-index": "1"}, {"PATH": os.environ["PATH"], "UV_CACHE_DIR": str(tmp_path / "cache")})
    command = [uv.find_uv_bin(), "pip", "compile", "-"]
    done = subprocess.run(
        command, input="packaging", capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode != 0
    assert "was not found" in done.stderr
