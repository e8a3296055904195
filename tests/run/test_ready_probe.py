"""The first question, asked of a fake of vLLM that misbehaves in every way known."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.cli.text.stack import answer_rows
from gemmaspec.core.errors import GemmaspecError, StartFailed, TimedOut
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.engine.answer import MAX_BYTES, Collector, Malformed
from gemmaspec.run.engine.http import NoAnswer
from gemmaspec.run.engine.server import Server
from gemmaspec.run.ready import first_request
from gemmaspec.run.ready.first_request import healthy
from gemmaspec.serve.prepare import prepare
from tests.support.fake_server import FakeServer, fake_server

probe = partial(first_request.probe, settle_s=0.0)


@pytest.fixture
def vllm() -> Iterator[FakeServer]:
    """A fake of vLLM; nobody waits for its counters."""
    with fake_server() as server:
        yield server


def refusal(server: Server, *, timeout_s: float = 10) -> GemmaspecError:
    """Why the probe does not take a server for ready."""
    with pytest.raises(GemmaspecError) as caught:
        probe(server, timeout_s=timeout_s)
    return caught.value


def test_a_server_that_answers_and_drafts_is_measured(vllm: FakeServer) -> None:
    vllm.drafted = 100
    answer = probe(vllm.server(), timeout_s=10)
    assert (answer.text, answer.finish_reason) == ("one two three", "stop")
    assert (answer.prompt_tokens, answer.completion_tokens) == (21, 30)
    assert (answer.drafts, answer.draft_tokens, answer.accepted_tokens) == (10, 40, 20)
    assert answer.acceptance_length == 3.0
    assert answer.tokens_per_second == pytest.approx(30 / answer.seconds)
    body, sampled = [body for path, _, body in vllm.requests if path == "/v1/chat/completions"]
    assert body["model"] == "tiny"
    assert (body["temperature"], sampled["temperature"], sampled["logprobs"]) == (0, 1, True)
    assert body["max_tokens"] == first_request.MAX_TOKENS


def test_a_sampled_answer_of_tokens_that_the_target_would_not_choose_is_no_start(vllm: FakeServer) -> None:
    vllm.logprobs = [-0.1] * 40 + [-7.0] * 3
    assert probe(vllm.server(), timeout_s=10)
    vllm.logprobs = [-0.1] * 40 + [-7.0] * 4
    assert "4 of 44 have a probability under 0.001, the first ' 40'" in refusal(vllm.server()).message
    assert probe(vllm.server(), timeout_s=10, any_text=True)
    assert probe(vllm.server(speculates=False), timeout_s=10)


def test_a_server_without_a_draft_needs_no_counters(vllm: FakeServer) -> None:
    vllm.metrics = b"garbage"
    answer = probe(vllm.server(speculates=False), timeout_s=10)
    assert answer.acceptance_length is None
    assert answer.draft_tokens == 0
    assert [path for path, _, _ in vllm.requests] == ["/v1/chat/completions"]


def test_a_server_that_answers_but_does_not_draft_is_not_ready(vllm: FakeServer) -> None:
    vllm.drafts_per_answer = 0
    error = refusal(vllm.server())
    assert "the server answers but does not draft" in error.message
    assert error.exit_code == 6


def test_a_server_that_looks_drafts_up_may_find_none(vllm: FakeServer) -> None:
    vllm.drafts_per_answer = 0
    answer = probe(vllm.server(looks_up=True), timeout_s=10)
    assert (answer.draft_tokens, answer.acceptance_length) == (0, None)
    name, drafted = list(answer_rows(answer, looks_up=True))[-1]
    assert (name, drafted.partition(":")[0]) == ("drafted", "nothing for this question")


@pytest.mark.parametrize("method", ["ngram", "suffix", "mtp", None])
def test_a_profile_s_method_says_whether_drafts_are_looked_up(method: str | None) -> None:
    sets = {
        "ngram": ("draft=", "speculative={method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4}"),
        "suffix": ("draft=", "speculative={method: suffix}"),
        "mtp": (),
        None: ("draft=", "speculative="),
    }[method]
    server = prepare(load_profile("spark-31b-mtp", overrides=sets), engine="docker")[0]
    assert (server.speculates, server.looks_up) == (method is not None, method in ("ngram", "suffix"))


def test_a_page_without_counters_is_an_error(vllm: FakeServer) -> None:
    vllm.metrics = b"<html>garbage\xff\x00"
    assert "the counters of /metrics cannot be read" in refusal(vllm.server()).message


def test_counters_that_cannot_be_read_are_an_error(vllm: FakeServer) -> None:
    vllm.metrics = b"vllm:spec_decode_num_drafts_total{ lots\n"
    assert "cannot be read" in refusal(vllm.server()).message


def test_counters_that_come_late_are_waited_for(vllm: FakeServer) -> None:
    for drafts in (0, 0, 0, 2, 5, 5):
        vllm.drafted, vllm.generated = drafts, 6 * drafts
        vllm.metrics_in_turn.append(vllm.counters())
    assert probe(vllm.server(), timeout_s=10).drafts == 5
    assert vllm.metrics_in_turn == []


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("<|channel>thought\nHm.<channel|>One.", "reasoning parser"),
        ("One.<channel|>", "reasoning parser"),
        ("One.<turn|>", "chat template"),
        ("<|turn>model\nOne.", "chat template"),
        ("thought\nI count.One.", "reasoning parser"),
    ],
)
def test_a_marker_in_the_text_is_told_with_its_culprit(vllm: FakeServer, text: str, culprit: str) -> None:
    vllm.message["content"] = text
    assert culprit in refusal(vllm.server()).message


@pytest.mark.parametrize("content", ["", None, 7, ["text"]])
def test_an_empty_answer_is_not_one(vllm: FakeServer, content: Any) -> None:
    vllm.message["content"] = content
    assert "empty" in refusal(vllm.server()).message


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_an_answer_that_is_still_thinking_is_one(vllm: FakeServer, field: str) -> None:
    vllm.message = {"role": "assistant", "content": None, field: "I count."}
    assert probe(vllm.server(), timeout_s=10).reasoning == "I count."


@pytest.mark.parametrize("reason", ["abort", "error", None, 3, "x" * 1000])
def test_an_answer_that_ended_otherwise_is_not_ready(vllm: FakeServer, reason: Any) -> None:
    vllm.finish_reason = reason
    assert len(refusal(vllm.server()).message) < 200


def test_a_connection_that_breaks_is_no_answer(vllm: FakeServer) -> None:
    vllm.hang_up = True
    error = refusal(vllm.server())
    assert isinstance(error, NoAnswer)
    assert "closed the connection" in error.message


def test_a_dead_port_is_no_answer(vllm: FakeServer) -> None:
    server = vllm.server()
    vllm.server_close()
    assert isinstance(refusal(server), NoAnswer)
    assert not healthy(server)


def test_an_error_inside_the_server_is_no_answer_and_is_quoted(vllm: FakeServer) -> None:
    vllm.status = 500
    vllm.body = json.dumps({"error": {"message": "EngineCore encountered an issue.\x1b[2J", "code": 500}}).encode()
    error = refusal(vllm.server())
    assert isinstance(error, NoAnswer)
    assert "HTTP 500" in error.message
    assert "EngineCore encountered an issue." in error.message
    assert "\x1b" not in error.message


def test_a_refused_request_is_quoted(vllm: FakeServer) -> None:
    vllm.status, vllm.body = 404, b'{"object": "error", "message": "The model `tiny` does not exist."}'
    error = refusal(vllm.server())
    assert not isinstance(error, NoAnswer)
    assert "The model `tiny` does not exist." in error.message


def test_a_refused_key_says_which_variable_to_set_and_shows_no_key(
    vllm: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "correct-horse")
    vllm.status, vllm.body = 401, b'{"error": "Unauthorized"}'
    error = refusal(vllm.server(needs_api_key=True))
    assert "VLLM_API_KEY" in str(error.hint)
    assert "horse" not in f"{error.message}{error.hint}"


def test_the_key_is_sent_only_to_a_server_that_needs_one(vllm: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "correct-horse")
    probe(vllm.server(needs_api_key=True), timeout_s=10)
    assert {headers.get("Authorization") for _, headers, _ in vllm.requests} == {"Bearer correct-horse"}
    vllm.requests.clear()
    probe(vllm.server(), timeout_s=10)
    assert {headers.get("Authorization") for _, headers, _ in vllm.requests} == {None}


@pytest.mark.parametrize("key", ["käse", "two\nlines", "\x00"])
def test_a_key_that_no_header_can_hold_is_an_error_without_the_key(vllm: FakeServer, key: str) -> None:
    with pytest.raises(StartFailed) as caught:
        probe(vllm.server(), timeout_s=10, api_key=key)
    assert key not in caught.value.message


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{}", b'{"choices": []}', b'{"choices": [7]}', b"\xff", b"[" * 100_000, b"NaN"],
)
def test_a_body_that_is_no_completion_is_an_error(vllm: FakeServer, body: bytes) -> None:
    vllm.body = body
    assert refusal(vllm.server()).exit_code == 6


def test_a_huge_body_is_not_read(vllm: FakeServer) -> None:
    vllm.body = b" " * 50_000_000
    began = time.perf_counter()
    assert f"more than {MAX_BYTES} bytes" in refusal(vllm.server()).message
    assert time.perf_counter() - began < 60


def test_a_server_that_is_slow_for_ever_times_out(vllm: FakeServer) -> None:
    vllm.seconds_per_byte, vllm.body = 0.05, b" " * 10_000
    began = time.perf_counter()
    assert isinstance(refusal(vllm.server(), timeout_s=0.5), TimedOut)
    assert time.perf_counter() - began < 60


def test_no_redirect_is_followed_and_no_proxy_used(vllm: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server() as elsewhere:
        monkeypatch.setenv("HTTP_PROXY", elsewhere.server().base_url)
        monkeypatch.setenv("ALL_PROXY", elsewhere.server().base_url)
        vllm.status, vllm.location = 307, f"{elsewhere.server().base_url}/v1/chat/completions"
        assert "HTTP 307" in refusal(vllm.server()).message
        assert not elsewhere.requests


def test_health_is_a_status_of_200(vllm: FakeServer) -> None:
    assert healthy(vllm.server())
    vllm.health = 503
    assert not healthy(vllm.server())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "message", "content", "usage", "completion_tokens", "finish_reason"]),
            inner,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_any_json_is_an_answer_or_malformed(document: Any) -> None:
    collector = Collector()
    with contextlib.suppress(Malformed):
        collector.whole(json.dumps(document).encode())
        collector.answer()
