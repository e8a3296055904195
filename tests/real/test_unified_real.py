"""The 12B has no encoders and a processor of its own: its dummy folders, as a real vLLM takes them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gemmaspec.run.models.dummy import dummy_model
from tests.support import real
from tests.support.tiny_unified import tiny_unified

pytestmark = pytest.mark.real_process

ASKING = Path(__file__).parent.parent / "support" / "ask_processor.py"


@pytest.mark.parametrize(
    ("model", "kind"), [("google/gemma-4-12B-it-qat-w4a16-ct", "Gemma4Unified"), ("google/gemma-4-31B-it", "Gemma4")]
)
def test_its_processor_takes_an_image_and_a_sound(model: str, kind: str, tmp_path: Path) -> None:
    """transformers counts the tokens of 640 x 480 pixels and of a second of sound."""
    folder = dummy_model(model, None, into=tmp_path, note=print)
    done = subprocess.run(
        [str(real.cpu_python()), str(ASKING), str(folder)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["processor"], found["config"]) == (f"{kind}Processor", f"{kind}Config")
    assert (found["image_tokens"], found["audio_tokens"]) == (266, 25)


def test_bench_starts_a_tiny_one_with_dummy_weights_and_its_assistant(tmp_path: Path) -> None:
    real.tiny_pair()
    target, assistant = tiny_unified(tmp_path)
    models = ("--set", f"target.model={target}", "--set", f"draft.model={assistant}")
    cells = ("--k", "2", "--context", "64", "--concurrency", "1", "--max-tokens", "16", "--each", "1")
    once = ("--rounds", "1", "--repeats", "0", "--engine", "process", "--out", str(tmp_path / "out"))
    server = ("--set", f"serve.port={real.free_port()}")
    done = real.gemmaspec("bench", "tiny-cpu-mtp", "--dummy-weights", *cells, *once, *models, *server, timeout=1800)
    assert done.code == 0, done.err
    (row,) = json.loads((tmp_path / "out" / "result.json").read_text())["rows"]
    assert (row["method"], row["k"], row["weights"], row["images"]) == ("mtp", 2, "dummy", True)
