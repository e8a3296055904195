"""Measure what `gemmaspec inspect` reads of a remote checkpoint: the bytes that a fake of the Hub sends for headers of
the published shapes. The Hub itself sends some ten kilobytes of further information about a model."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support import shapes
from tests.support.hub import Body, Hub, serve

LIMIT = 2.0
"""Megabytes."""


def published(size: str, *, packed: bool) -> dict[str, Body]:
    """Return a checkpoint of a published size, in BF16 or NVFP4."""
    config = shapes.config(size)
    tensors = shapes.tensors(config)
    stored = shapes.nvfp4(tensors) if packed else tensors
    return shapes.model(config, stored, tokens=shapes.tokenizer(), separate=shapes.modelopt() if packed else None)


def single_experts() -> dict[str, Body]:
    """Return the 26B-A4B with its 128 experts stored one by one in NVFP4."""
    config = shapes.config("26B-A4B")
    stored = shapes.single_experts(shapes.tensors(config))
    return shapes.model(config, stored, tokens=shapes.tokenizer(), separate=shapes.modelopt())


def inspect() -> Iterator[tuple[str, str, str]]:
    """Yield the bytes and the time of the whole command."""
    with serve() as hub, tempfile.TemporaryDirectory() as home:
        for size in shapes.TEXTS:
            for packed in (False, True):
                kind = "NVFP4" if packed else "BF16"
                hub.add(f"some/{size}-{kind}", published(size, packed=packed))
                yield measured(hub, Path(home), f"some/{size}-{kind}", f"at most {LIMIT} MB")
        hub.add("some/26B-A4B-experts", single_experts())
        yield measured(hub, Path(home), "some/26B-A4B-experts", "scales of each expert separate; over 2 MB")


def measured(hub: Hub, home: Path, name: str, wanted: str) -> tuple[str, str, str]:
    """Return one row of the table."""
    hub.forget()
    began = time.perf_counter()
    command = [sys.executable, "-m", "gemmaspec", "inspect", name]
    subprocess.run(command, check=True, capture_output=True, env=hub.environment(home))
    taken = time.perf_counter() - began
    what = f"`inspect` of a remote {name.removeprefix('some/')}, read"
    return what, f"{hub.sent / 1e6:.2f} MB", f"{len(hub.requests)} requests, {taken:.1f} s with the command; {wanted}"


SUITES = {"inspect": inspect}
