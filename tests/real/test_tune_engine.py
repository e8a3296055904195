"""`gemmaspec tune` through the real engine and launcher, with a fake vLLM in the place of vLLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.kept import stacks
from tests.support import fake_runtime, real
from tests.support.fake_runtime import Fake

ROOT = Path(__file__).parent.parent.parent
PROGRAM = f"""\
import json, os, sys
sys.path.insert(0, {str(ROOT)!r})
from http.server import ThreadingHTTPServer
from tests.support import fake_vllm

args = sys.argv[1:]
host, port = (args[args.index(flag) + 1] for flag in ("--host", "--port"))
spec = json.loads(args[args.index("--speculative-config") + 1]) if "--speculative-config" in args else {{}}
if spec.get("num_speculative_tokens") == 3:
    sys.exit("RuntimeError: no drafts of three")


class Server(fake_vllm.FakeVllm):
    allow_reuse_port = True

    def __init__(self):
        ThreadingHTTPServer.__init__(self, (host, int(port)), Handler)


class Handler(fake_vllm._Handler):
    def do_GET(self):
        if self.path == "/health":
            return self._reply(200, "")
        super().do_GET()

    def _stream(self, body, *, dies):
        if body.get("stream"):
            return super()._stream(body, dies=dies)
        fake = self.server
        fake.generated, fake.drafts = fake.generated + 7, fake.drafts + (5 if fake.k else 0)
        choice = {{"index": 0, "message": {{"role": "assistant", "content": "one two"}}, "finish_reason": "stop"}}
        usage = {{"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}}
        self._json({{"id": "x", "choices": [choice], "usage": usage}})


own = fake_vllm.FakeVllm()
own.server_close()
server = Server()
vars(server).update({{name: value for name, value in vars(own).items() if name not in vars(server)}})
server.k = spec.get("num_speculative_tokens", 0)
server.accepts, server.step_s = min(server.k, 2), 0.002
server.serve_forever()
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    place = fake_runtime.installed(tmp_path / "fake", PROGRAM)
    fake_runtime.make_models()
    for name, value in place.environment().items():
        monkeypatch.setenv(name, value)
    return place


def test_every_arm_is_started_and_stopped_by_up_and_the_answer_is_what_ran(fake: Fake, tmp_path: Path) -> None:
    port = real.free_port()
    for name in ("one", "other"):
        fake.profile(name, port)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "a.jsonl").write_text('{"prompt": "say it"}\n')
    own = ["--prompts", str(tmp_path / "prompts"), "--each", "1", "--max-tokens", "16", "--repeats", "0"]
    few = ["--concurrency", "1", "--stages", "1", "--k", "3,2", "--no-others", "--arm", "other"]
    (done,) = fake.race(["tune", "one", "--json", "--engine", "process", *own, *few])
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert set(document["tried"]["failed"]) == {"one/draft_model/3", "other/draft_model/3"}
    assert {one["arm"] for one in document["tried"]["cells"]} >= {"one/none/0", "one/draft_model/2"}
    assert document["choice"]["k"] == 2
    for name in ("one", "other"):
        started = stacks.find(name)
        assert stacks.engine_of(started).state(started.server).status in ("absent", "exited")
    assert load_profile("one-tuned").profile.tuned
    (done,) = fake.race(["up", "one-tuned", "--engine", "process"])
    try:
        assert done.code == 0, done.err
        assert "machine, image, vLLM and models are those that were measured" in done.err
    finally:
        assert fake.race(["down", "one-tuned"])[0].code == 0
