"""A result names no path, address or host without a word."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from gemmaspec.cli.bench import _show
from gemmaspec.measure.bench.places import places


@pytest.mark.parametrize(
    "text",
    [
        "/home/ann/models/x", "~/x", "./x", "../x", "runtime.python=/opt/py", "runtime.python=~/py", "state:tiny/tiny-target",
        "http://10.0.0.1:8000", "on rig-7 since noon", "rig-7", "PATH=/usr/bin:/home/ann/bin", "file:/x", "['/x']",
    ],
)  # fmt: skip
def test_what_names_this_machine_is_found(text: str) -> None:
    assert list(places({"a": [1, {"b": text}], "ok": "x"}, host="rig-7")) == ["a.1.b"]
    assert list(places({"a": {text: 1}}, host="rig-7")) == [f"a.{text}"]


@pytest.mark.parametrize(
    "text",
    [
        "google/gemma-4-31B-it", "vllm/vllm-openai:v0.32.0", "sha256:77", "tokens/s", "2026-11-23", "serve.port=8001",
        "NVIDIA H200", "a/b", "rig-70", "2.13.0+cu130", "mtp/4", "",
    ],
)  # fmt: skip
def test_what_is_public_is_not(text: str) -> None:
    assert list(places({"a": text, "n": 3, "none": None}, host="rig-7")) == []


def test_bench_says_where_before_somebody_attaches_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {
        "failed": [],
        "rows": [],
        "cells": [],
        "settings": {"overrides": ["runtime.python=/opt/py"]},
        "host": socket.gethostname(),
    }
    _show(document, tmp_path, as_json=True)
    said = capsys.readouterr()
    assert "result.json names this machine: settings.overrides.0, host" in said.err
    json.loads(said.out)
