"""A vLLM that a script started is taken over, and the profile serves with the words that the kernel has."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.running import processes
from gemmaspec.run.stack.paths import container_paths
from gemmaspec.run.stack.serve import serve_command
from tests.support import real

pytestmark = pytest.mark.real_process

MODELS = Path(__file__).parent.parent.parent / "models"
SCRIPT = """\
#!/bin/bash
case "${1:-small}" in
  small) MODEL=%(models)s/tiny-target ;;
  big) MODEL=nobody/no-such-model ;;
esac
ARGS=(--max-model-len 512 --max-num-seqs 3)
if true; then ARGS+=(--served-model-name 'costs $5'); fi
export VLLM_CPU_KVCACHE_SPACE=1
%(vllm)s serve "$MODEL" "${ARGS[@]}" --speculative-config \
  '{"method": "draft_model", "model": "%(models)s/tiny-draft", "num_speculative_tokens": 2}'
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[int]:
    """Yield the pid of a script with a case, an array and an `if`, whose vLLM is starting."""
    vllm = real.cpu_python().with_name("vllm")
    file = tmp_path / "serve.sh"
    file.write_text(SCRIPT % {"models": MODELS, "vllm": vllm})
    file.chmod(0o755)
    environment = os.environ | {"HF_TOKEN": "hf_s3cret"}
    with (tmp_path / "log").open("wb") as log:
        started = subprocess.Popen([str(file)], env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        while processes.serving_among(processes.below(started.pid)) is None:
            assert started.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.05)
        yield started.pid
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def test_what_a_script_starts_is_taken_over_word_for_word(
    script: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert run(["profile", "new", "mine", "--from-running", str(script)]) == 0
    file = tmp_path / "gemmaspec" / "profiles" / "mine.yaml"
    profile = load_profile(str(file)).profile
    server = processes.serving_among(processes.below(script))
    assert server
    words = processes.argv_of(server)
    assert profile.target.model == words[words.index("serve") + 1]
    assert profile.draft
    assert profile.draft.model == str(MODELS / "tiny-draft")
    assert (profile.runtime.vllm, profile.env["VLLM_CPU_KVCACHE_SPACE"]) == ("0.32.0", "1")
    served = serve_command(profile, container_paths(profile))
    for flag in ("--max-model-len", "--max-num-seqs", "--served-model-name"):
        assert served[served.index(flag) + 1] == words[words.index(flag) + 1]
    assert "HF_TOKEN" in profile.pass_env
    assert "hf_s3cret" not in file.read_text() + capsys.readouterr().err
