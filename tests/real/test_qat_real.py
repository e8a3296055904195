"""The tiny pair in the form of Google's W4A16, served by vLLM on this machine's CPU: with and without the patch."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support import real

pytestmark = pytest.mark.real_process

WRITER = Path(__file__).parent.parent / "support" / "tiny_qat.py"
EXACT_NAMES = "draft-exact-names"


@pytest.fixture(scope="module")
def pair() -> tuple[str, ...]:
    """What sets the target and the draft to folders of four bits."""
    words: list[str] = []
    for role, name in (("target", "tiny-target"), ("draft", "tiny-draft")):
        folder = real.STATE / "qat" / name
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run([str(real.cpu_python()), str(WRITER), str(real.tiny_pair() / name), str(folder)], check=True)
        words += ["--set", f"{role}.model={folder}", "--set", f"{role}.quantization=compressed-tensors"]
    return tuple(words)


def started(pair: tuple[str, ...], *patches: str) -> real.Done:
    """Start the run's server with these patches, and stop it again."""
    port = ("--set", f"serve.port={real.PORT}")
    try:
        return real.gemmaspec("up", real.PROFILE, "--engine", "process", *port, *pair, *real.patches(*patches))
    finally:
        real.gemmaspec("down", real.PROFILE)


def test_both_models_are_read_in_four_bits_and_draft(pair: tuple[str, ...]) -> None:
    """Both ignore lists have exact names: vLLM builds the draft below draft_model., where only the patch matches them."""
    done = started(pair, *real.SHIPPED, EXACT_NAMES)
    assert done.code == 0, done.err
    found = re.search(r"(\d+) accepted: acceptance length", done.out)
    assert found, done.out
    assert int(found[1]) > 0


def test_without_the_patch_up_refuses_before_vllm_takes_the_encoder_for_quantized(pair: tuple[str, ...]) -> None:
    """vLLM 0.32.0 here ends with "Failed to find a kernel that can implement the WNA16 linear layer"."""
    done = started(pair, *real.SHIPPED)
    assert done.code != 0
    assert "GS233" in done.err
    assert EXACT_NAMES in done.err
