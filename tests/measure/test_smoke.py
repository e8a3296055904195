"""The checks of `smoke`, each against a fake server that passes it and one for each way to fail it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from gemmaspec.core.errors import UsageError
from gemmaspec.measure.chat import ChatAsking, ask_all
from gemmaspec.measure.smoke.catalogue import CHECKS, budget_s, chosen
from gemmaspec.measure.smoke.check import Ask, Check, Judged, Need, Received, ServerOffer, judged, shown, skipped
from gemmaspec.measure.smoke.known_issues import KNOWN, KnownIssue
from gemmaspec.measure.smoke.texts import leak, loop, variety
from gemmaspec.run.engine.answer import ChatAnswer, Fault
from tests.support.fake_chat import CALLS, MODEL, TEXT, FakeChat, Reply, fake_chat

OFFER = ServerOffer(model=MODEL, max_len=16384, stored_length=4.0, versions=("0.32.0",))
BY_ID = {one.id: one for one in CHECKS}


def asked(fake: FakeChat, asks: Any, *, request_s: float = 120.0, run_s: float = 300.0) -> dict[str, ChatAnswer]:
    asking = ChatAsking(server=fake.server(), api_key=None, together=8, request_s=request_s, run_s=run_s, counted=True)
    answers = ask_all(asking, asks, on_answer=lambda _: None)
    return {ask.key: answer for ask, answer in zip(asks, answers, strict=True)}


def run(check: Check, fake: FakeChat, offer: ServerOffer = OFFER, **limits: float) -> Judged:
    asks = check.asks(offer)
    reference: dict[str, ChatAnswer] = {}
    if Need.REFERENCE in check.needs:
        with fake_chat() as other:
            reference = asked(other, asks)
    answers = asked(fake, asks, **limits)
    return judged(check, Received(offer=offer, asks=asks, answers=answers, reference=reference))


@pytest.mark.parametrize("check", CHECKS, ids=lambda one: str(one.id))
def test_a_good_server_passes(check: Check) -> None:
    with fake_chat() as fake:
        found = run(check, fake)
    assert found.word == "pass", found


def says(body: dict[str, Any], text: str) -> bool:
    return text in json.dumps(body["messages"])


def when(wanted: Callable[[dict[str, Any]], bool], **changes: Any) -> Callable[..., Reply]:
    """Spoil the answers to some requests."""
    return lambda body, reply, _: reply.but(**changes) if wanted(body) else reply


def streamed(body: dict[str, Any]) -> bool:
    return bool(body["stream"])


def always(_: dict[str, Any]) -> bool:
    return True


def fills(fake: FakeChat) -> bool:
    """Whether several requests have run at once, as soon as that is so."""
    patience = time.monotonic() + 60
    while fake.most_in_flight < 2 and time.monotonic() < patience:
        time.sleep(0.005)
    return fake.most_in_flight > 1


def crowded(body: dict[str, Any], reply: Reply, fake: FakeChat) -> Reply:
    """Break JSON as #44993 does: only where several requests run at once."""
    return reply.but(content='{"city": "Oslo"}}}') if fills(fake) else reply


def second(body: dict[str, Any], reply: Reply, fake: FakeChat) -> Reply:
    return reply.but(content="438") if len(fake.seen) > 1 else reply


def second_undrafted(body: dict[str, Any], reply: Reply, fake: FakeChat) -> Reply:
    return reply.but(accepted=5) if len(fake.seen) > 1 else reply


def dies(body: dict[str, Any], reply: Reply, fake: FakeChat) -> Reply:
    fake.dead = fake.dead or "image_url" in json.dumps(body["messages"])
    return reply


FAILURES: tuple[tuple[str, str, Any, str], ...] = (
    ("S1", "thought in the content", when(lambda b: not streamed(b), content="thought\nI think. 391", reasoning=""),
     "begins with the thought"),
    ("S1", "markers", when(always, content="<|channel>thought"), "<|channel>"),
    ("S2", "leak in the stream alone", when(streamed, content="<channel|>It rains."), "streamed, alone"),
    ("S3", "only reasoning", when(streamed, content=None), "empty content (streamed"),
    ("S4", "synthetic marker", when(lambda b: "tools" in b, content="<|channel>hi"), "holds <|channel>"),
    ("S5", "text before the JSON", when(always, content='Sure: {"city": 1}'), "text before the JSON"),
    ("S6", "nothing at all", when(always, content=None, reasoning=""), "leaves content and reasoning empty"),
    ("S7", "arguments lost", when(streamed, calls=(("call_1", "get_station", ""), CALLS[1])), "are empty"),
    ("S7", "a call lost", when(streamed, calls=CALLS[1:]), "without a stream get_station, get_station"),
    ("S7", "no id", when(streamed, calls=((None, "get_station", CALLS[0][2]), CALLS[1])), "no id or no name"),
    ("S7", "not JSON", when(always, calls=((*CALLS[0][:2], "{city"), CALLS[1])), "{city"),
    ("S7", "a parameter missing", when(always, calls=((*CALLS[0][:2], "{}"), CALLS[1])), "are {}"),
    ("S8", "cut short", when(streamed, content="A", reasoning=""), "characters streamed"),
    ("S9", "broken by a crowd", crowded, "does not fit the schema"),
    ("S9", "wrong type", when(always, content='{"city": "Oslo", "country": "Norway", "inhabitants": "many", '
                              '"on_a_river": false}'), "does not fit the schema"),
    ("S10", "blanks without end", when(always, content="{" + " " * 250_000, finish="length"), "blanks at the end"),
    ("S10", "the same again", when(always, content='{"cities": ["' + "one two three four five six seven eight " * 20),
     "the same 8 words"),
    ("S11", "the same again", when(always, content="so it goes on and on " * 40), "the same 8 words"),
    ("S11", "few words", when(always, content="one two three four five six " * 6), "different"),
    ("S11", "needle lost", when(lambda b: says(b, "TAMARISK"), content="HARBOUR"), "was not found"),
    ("S12", "another answer", second, "answered differently"),
    ("S12", "drafted worse", second_undrafted, "acceptance length 4.00, then 1.50"),
    ("S19", "forgotten", when(lambda b: len(json.dumps(b)) > 20_000, content="HARBOUR"), "in 8,192 tokens was not found"),
    ("S13", "engine death", dies, "no longer answers"),
    ("S13", "HTTP 500", when(always, status=500, said="EngineDeadError"), "a request with an image fails"),
    ("S14", "refused", when(lambda b: "min_p" in b, status=400, said="min_p is not supported"), "send min_p fail"),
    ("S15", "refused", when(lambda b: "tools" in b, status=400, said='"auto" tool choice requires --enable'), "HTTP 400"),
    ("S16", "another model", when(always, model="qwen"), "qwen answers for tiny"),
    ("S16", "any name is answered", when(lambda b: b["model"] != MODEL, status=200), "not served is answered"),
    ("S16", "its own name refused", when(always, status=404, said="no such model"), "own name is refused"),
    ("S17", "another token, far apart", when(always, content=TEXT.replace("slowly", "late"), gap=2.0), "1.00 nats"),
    ("S20", "tokens of nobody's choice", when(always, unlikely=4), "4 of 36 sampled tokens"),
    ("S18", "no drafts", when(always, drafts=0, accepted=0), "nothing was drafted"),
    ("S18", "none accepted", when(always, accepted=0), "no token of 20 drafts"),
    ("S18", "under the stored length", when(always, accepted=15), "acceptance length 2.50, and 4.00"),
)  # fmt: skip


@pytest.mark.parametrize(("id_", "spoil", "seen"), [
    pytest.param(id_, spoil, seen, id=f"{id_}-{name}") for id_, name, spoil, seen in FAILURES
])  # fmt: skip
def test_a_server_with_the_bug_fails(id_: str, spoil: Any, seen: str) -> None:
    with fake_chat(spoil) as fake:
        found = run(BY_ID[id_], fake)
    assert found.word == "fail", found
    assert seen in found.seen
    assert found.key in {one.key for one in BY_ID[id_].asks(OFFER)}


def test_each_check_has_a_server_that_fails_it() -> None:
    assert {id_ for id_, *_ in FAILURES} == set(BY_ID)


UNKNOWN: tuple[tuple[str, Any, str], ...] = (
    ("S1", when(always, reasoning=""), "no answer had a thought"),
    ("S2", when(always, content=None, reasoning=""), "no answer had a text"),
    ("S3", when(always, content=None, finish="length"), "no answer ended"),
    ("S6", when(always, finish="stop"), "was not cut off"),
    ("S7", when(always, calls=(), content="I cannot."), "called no tool"),
    ("S7", when(always, calls=CALLS[:1]), "called one tool"),
    ("S8", when(always, content=None, reasoning=""), "is empty"),
    ("S9", when(always, content='{"city": "O', finish="length"), "cut off"),
    ("S10", when(always, content='{"cities": [', finish="length"), "cut off after"),
    ("S11", when(lambda b: not says(b, "TAMARISK"), content="short"), "no answer was long enough"),
    ("S12", when(always, content=" "), "are empty"),
    ("S13", when(lambda b: says(b, "image_url"), status=400, said="At most 0 image(s)"), "takes no image"),
    ("S17", when(always, content=None), "gave no log-probabilities"),
)


@pytest.mark.parametrize(("id_", "spoil", "seen"), UNKNOWN)
def test_what_a_server_does_not_show_is_unknown_and_no_pass(id_: str, spoil: Any, seen: str) -> None:
    with fake_chat(spoil) as fake:
        found = run(BY_ID[id_], fake)
    assert (found.word, seen in found.seen) == ("unknown", True), found


def test_other_traffic_makes_the_acceptance_unknown() -> None:
    def traffic(body: dict[str, Any], reply: Reply, fake: FakeChat) -> Reply:
        fake.generated += 7
        return reply

    with fake_chat(traffic) as fake:
        assert run(BY_ID["S18"], fake).word == "unknown"


def test_two_close_tokens_may_change_places() -> None:
    with fake_chat(when(always, content=TEXT.replace("slowly", "late"), gap=0.2)) as fake:
        found = run(BY_ID["S17"], fake)
    assert found.word == "pass"
    assert "0 of 16 greedy texts" in found.seen


HOSTILE: tuple[tuple[str, dict[str, Any], str, str], ...] = (
    ("endless", {"endless": True}, "unknown", "did not end within"),
    ("huge", {"raw": b" " * (4 * 1024 * 1024 + 1)}, "fail", "longer than the request allows"),
    ("not JSON", {"raw": b"<html>"}, "fail", "malformed"),
    ("no object", {"raw": b"[]"}, "fail", "malformed"),
    ("no choice", {"raw": b'{"choices": []}'}, "fail", "malformed"),
    ("deep", {"raw": b"[" * 100_000}, "fail", "malformed"),
    ("no message", {"raw": b'{"choices": [{"message": 5}]}'}, "unknown", "no answer had a thought"),
    ("calls", {"raw": b'{"choices": [{"message": {"tool_calls": [{"index": -1}]}}]}'}, "fail", "malformed"),
    ("hangs up", {"hangs_up": True}, "fail", "broke off"),
    ("HTTP 500", {"status": 500, "said": "boom \x1b[31m" + "x" * 999}, "fail", "failed inside the server: boom"),
    ("HTTP 302", {"status": 302}, "fail", "failed inside the server"),
    ("HTTP 400", {"status": 400, "said": "no"}, "unknown", "refuses the request: no"),
)


@pytest.mark.parametrize(("reply", "word", "seen"), [pytest.param(*rest, id=name) for name, *rest in HOSTILE])
def test_a_hostile_answer_is_bounded_and_never_a_pass(reply: dict[str, Any], word: str, seen: str) -> None:
    with fake_chat(when(always, **reply)) as fake:
        found = run(BY_ID["S1"], fake, request_s=0.5)
    assert (found.word, seen in found.seen) == (word, True), found
    assert len(found.seen) < 300
    assert found.seen.isprintable()


@pytest.mark.parametrize("raw", [b"data: {\n\n", b"data: 5\n\n", b"data: {}\n\n", b"", b"event: x\n\n"])
def test_a_stream_that_is_none_is_no_pass(raw: bytes) -> None:
    with fake_chat(when(always, raw=raw)) as fake:
        assert run(BY_ID["S3"], fake).word == "fail"


def test_an_error_in_the_middle_of_a_stream_is_a_failure() -> None:
    with fake_chat(when(always, raw=b'data: {"error": {"message": "EngineDead"}}\n\n')) as fake:
        found = run(BY_ID["S3"], fake)
    assert (found.word, "EngineDead" in found.seen) == ("fail", True)


def test_an_answer_that_no_cache_gave_shows_nothing_of_the_cache() -> None:
    with fake_chat() as fake:
        fake.caches = False
        found = run(BY_ID["S12"], fake)
    assert (found.word, found.seen) == ("unknown", "the second prompt was not read from the cache")


def test_a_long_prompt_that_takes_too_long_is_unknown_and_names_those_that_were_read() -> None:
    late = when(lambda b: len(json.dumps(b)) > 20_000, endless=True)
    with fake_chat(late) as fake:
        found = run(BY_ID["S19"], fake, request_s=1.0)
    assert found.word == "unknown"
    assert found.seen.endswith(
        "8,192 tokens took longer than one request may, or than all; a word was found in 6,000 tokens"
    )


def test_a_server_that_is_not_there_and_a_run_without_time_are_unknown() -> None:
    with fake_chat() as fake:
        assert "because --timeout was reached" in run(BY_ID["S3"], fake, run_s=0.0).seen
    found = run(BY_ID["S3"], fake)
    assert (found.word, "cannot be reached" in found.seen) == ("unknown", True)


def test_a_refused_key_ends_the_run_with_a_hint() -> None:
    with fake_chat(when(always, status=401)) as fake, pytest.raises(UsageError) as error:
        run(BY_ID["S9"], fake)
    assert "VLLM_API_KEY" in (error.value.hint or "")


def test_requests_that_are_alone_are_alone_and_the_rest_are_at_most_eight() -> None:
    def slow(body: dict[str, Any], reply: Reply, fake: FakeChat) -> Reply:
        time.sleep(0.05)
        assert len(fake.seen) <= 6 or fills(fake)  # twice three were alone
        return reply

    asks = [Ask(key=str(n), body=one.body, alone=n < 3) for n, one in enumerate(BY_ID["S9"].asks(OFFER))]
    with fake_chat(slow) as fake:
        asked(fake, asks[:3])
        assert fake.most_in_flight == 1
        asked(fake, asks)
        assert 1 < fake.most_in_flight <= 8


@pytest.mark.parametrize("together", range(1, 9))
@pytest.mark.parametrize("lacks", [(Need.REFERENCE, Need.LONG), (Need.REFERENCE, Need.LONG, Need.THINKING, Need.TOOLS)])
def test_a_run_takes_under_90_seconds_at_30_tokens_a_second(together: int, lacks: tuple[Need, ...]) -> None:
    """Answers as long as they may be, 30 tokens a second for one request; 8 s stay for 17,000 tokens of prompts."""
    offer = ServerOffer(model=MODEL, together=together, lacks=frozenset(lacks))
    assert budget_s(CHECKS, offer) <= 82
    asked = [check for check in CHECKS if not skipped(check, offer) or Need.LONG not in check.needs]
    prompts = [json.dumps(ask.body["messages"]) for check in asked for ask in check.asks(offer)]
    assert sum(map(len, prompts)) / 3 < 17_000


def test_a_check_is_skipped_by_what_is_missing() -> None:
    offer = ServerOffer(model=MODEL, lacks=frozenset({Need.THINKING, Need.TOOLS}))
    assert skipped(BY_ID["S2"], offer) == "the profile sets no chat.reasoning_parser"
    assert skipped(BY_ID["S7"], offer) == "the profile sets no chat.tool_call_parser"
    assert skipped(BY_ID["S9"], offer) is None


def test_checks_are_chosen_by_id_and_a_wrong_one_is_named() -> None:
    assert [one.id for one in chosen(only=["S9", "S1"], skip=["S1"])] == ["S9"]
    assert len(chosen(only=[], skip=["S17"])) == 19
    with pytest.raises(UsageError, match="S99"):
        chosen(only=[], skip=["S99"])


def test_requests_of_a_check_have_keys_of_their_own_and_bounded_answers() -> None:
    for check in CHECKS:
        asks = check.asks(OFFER)
        assert len({one.key for one in asks}) == len(asks), check.id
        assert all(0 < one.max_tokens <= 384 for one in asks), check.id


def test_issues_belong_to_checks_and_a_fix_has_its_source() -> None:
    assert set(KNOWN) <= set(BY_ID)
    assert all(one.source for known in KNOWN.values() for one in known if one.fixed_in)


@pytest.mark.parametrize(("running", "said"), [
    ("0.23.0", "fixed in 0.24.0, 0.23.0 runs"), ("0.32.0", "may be another bug"), (None, "fixed in 0.24.0"),
    ("dev", "fixed in 0.24.0"),
])  # fmt: skip
def test_a_known_issue_says_what_it_means_for_the_vllm_that_runs(running: str | None, said: str) -> None:
    known = KnownIssue(number=1, title="a bug", state="closed", fixed_in="0.24.0")
    assert said in known.line(running)


def test_texts() -> None:
    assert leak("All is well.") is None
    assert leak("a <tool_call|>") == "the text holds <tool_call|>"
    assert loop("word " * 9 + "x") is None
    assert loop("a b c d e f g h " * 10) is not None
    assert variety("too short") is None
    assert shown("a\x1b[31mb\nc") == "a [31mb⏎c"
    assert len(shown("x" * 100_000)) <= 162


def test_a_fault_is_never_a_pass_whatever_the_check() -> None:
    for check in CHECKS:
        for fault in Fault:
            asks = check.asks(OFFER)
            answers = {one.key: ChatAnswer(fault=fault) for one in asks}
            found = judged(check, Received(offer=OFFER, asks=asks, answers=answers))
            assert found.word != "pass", (check.id, fault)
