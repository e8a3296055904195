"""`explain --log` and `explain TEXT`: what a log of any vLLM server shows."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gemmaspec.cli.app import run
from gemmaspec.run.ready.raises import HOLE, TABLE, where_raised

ROOT = Path(__file__).parent.parent.parent
LOGS = ROOT / "tests" / "logs"
MULTI_GPU = (
    ("RuntimeError: CUDASymmetricMemory: device does not support multicasting", "no-multicast"),
    ("torch.AcceleratorError: CUDA error: invalid device ordinal", "device-ordinal"),
    ("NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000", "duplicate-gpu"),
    (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
        "fabric-manager",
    ),
    ("RuntimeError: size_k = 352 is not divisible by b_scales.size(0) = 3", "shard-size-marlin"),
    ("TimeoutError: RPC call to sample_tokens timed out.", "worker-timeout"),
    ("Assertion `srcIndex < srcSelectDimSize` failed. device-side assert triggered", "index-out-of-range-gpu"),
)


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["explain", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("text", "code"), MULTI_GPU, ids=[code for _, code in MULTI_GPU])
def test_an_errors_text_is_answered_as_in_a_log(text: str, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(capsys, text).startswith(f"{code}, failure of a start\n")


def test_a_log_of_ones_own_names_cause_fix_and_release(capsys: pytest.CaptureFixture[str]) -> None:
    said = asked(capsys, "--log", str(LOGS / "vllm-0.32.0-kv-groups.log"))
    assert said.startswith("draft-several-kv-groups, failure of a start\n")
    assert "0.32.0" in said


def test_a_log_comes_from_stdin_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((LOGS / "vllm-0.32.0-port.log").read_bytes())))
    assert asked(capsys, "--log", "-").startswith("port-in-use")


def test_an_error_that_no_row_knows_names_its_file_and_condition(capsys: pytest.CaptureFixture[str]) -> None:
    said = asked(capsys, "ValueError: Beam allowlists require the V2 model runner")
    assert "not in the table of failures" in said
    assert "vllm/sampling_params.py, in " in said
    assert "0.33.0" in said
    document = json.loads(asked(capsys, "ValueError: Beam allowlists require the V2 model runner", "--json"))
    assert document["log"]["code"] is None
    assert document["log"]["raised"][0]["file"] == "sampling_params.py"


def test_values_in_a_text_are_holes() -> None:
    (place, *_) = where_raised("ValueError: Unsupported speculative method: 'dream'") or (None,)
    assert place is None or HOLE in place.text
    assert where_raised("nothing that anybody raises, at all") == ()


def test_a_log_without_an_error_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("INFO 11-20 17:48:56 [core.py:133] Initializing\n" * 3)
    assert run(["explain", "--log", str(tmp_path / "log")]) == 1
    assert "no error of vLLM, torch or the system is in it (3 lines)" in capsys.readouterr().err
    assert run(["explain", "--log", str(tmp_path / "missing")]) == 2
    assert run(["explain", "GS505", "--log", str(tmp_path / "log")]) == 2


def test_a_hostile_log_is_shown_without_escapes_and_takes_little_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "hf_abcdefghijklmnop"
    lines = [f"\x1b]0;x\x07ValueError: token {secret} \x1b[31m is wrong"] + ["a: " * 600] * 3_000
    (tmp_path / "log").write_bytes("\n".join(lines).encode() + b"\xff\xfe\0")
    began = time.process_time()
    said = asked(capsys, "--log", str(tmp_path / "log"))
    assert time.process_time() - began < 20
    assert secret not in said
    assert "\x1b" not in said


def test_the_table_has_rows_of_six_cells_that_name_files_of_vllm() -> None:
    rows = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines()]
    assert len(rows) > 3_000
    assert all(len(row) == 6 for row in rows)
    assert all(row[2].endswith(".py") and not row[2].startswith("vllm/") for row in rows)
    assert TABLE.stat().st_size < 2_000_000


def test_the_tool_reads_the_forms_of_raise(tmp_path: Path) -> None:
    source = tmp_path / "vllm" / "a.py"
    source.parent.mkdir()
    source.write_text(
        "def f(x):\n"
        "    if x > 1:\n"
        "        raise ValueError(f'x is {x}, which is too large' ' for this')\n"
        "    elif x < 0:\n"
        "        raise mod.OtherError('it is %d, below all numbers' % x)\n"
        "    else:\n"
        "        assert x, 'x must be something, it is {}'.format(x)\n"
        "    raise KeyError('short')\n"
    )
    code = "import sys; from pathlib import Path; from tools.raises import in_release\n"
    code += "for place in in_release(Path(sys.argv[1])): print(*place, sep='|')"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines() == [
        "ValueError|x is {}, which is too large for this|a.py|f|x > 1",
        "OtherError|it is {}, below all numbers|a.py|f|x < 0",
        "AssertionError|x must be something, it is {}|a.py|f|not (x)",
    ]
