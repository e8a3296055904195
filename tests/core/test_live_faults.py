"""Faults in counters: series of samples with a fault, and those that a naive rule would call one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from gemmaspec.core.live.faults import Event, FaultKind, Faults, Limits
from gemmaspec.core.live.reference import Reference
from gemmaspec.core.live.sample import TTFT, Histogram, Sample


def series(
    seconds: Iterable[int], *, drafts: float = 10.0, accepted: tuple[float, ...] = (8.0, 6.0, 4.0, 3.0),
    tokens: float = 30.0, prompt: float = 0.0, running: float = 1.0, base: float = 0.0, start: float = 1000.0,
) -> Iterator[Sample]:  # fmt: skip
    """Counters that grow by so much each second; `accepted` by position."""
    for second in seconds:
        yield Sample(
            at=float(second),
            started=start,
            histograms={},
            counts_drafts=True,
            drafts=base + drafts * second,
            draft_tokens=base + drafts * len(accepted) * second,
            accepted_tokens=base + sum(accepted) * second,
            accepted_by_position=tuple(base + one * second for one in accepted),
            generation_tokens=base + tokens * second,
            prompt_tokens=base + prompt * second,
            running=running,
        )


def fed(
    samples: Iterable[Sample], faults: Faults | None = None, *, power: float | None = None
) -> list[tuple[float, Event]]:
    faults = faults or Faults()
    return [(one.at, event) for one in samples for event in faults.add(one, power_w=power)]


DEAD = (0.1, 0.0, 0.0, 0.0)


def test_a_dead_draft_is_named_in_its_third_window() -> None:
    ((at, event),) = fed(series(range(120), accepted=DEAD))
    assert at == 90.0
    assert (event.kind, event.begins) == (FaultKind.DEAD_DRAFT, True)
    assert event.reason == "3 tokens accepted of 300 drafts in 30 s"


def test_a_draft_that_dies_while_it_runs_is_named_within_two_windows() -> None:
    faults = Faults()
    assert fed(series(range(200)), faults) == []
    at200 = next(series([199]))
    dying = (
        Sample(
            at=200.0 + second, started=1000.0, histograms={}, running=1.0,
            drafts=at200.drafts + 10 * second, draft_tokens=at200.draft_tokens + 40 * second,
            accepted_tokens=at200.accepted_tokens, accepted_by_position=at200.accepted_by_position,
            generation_tokens=at200.generation_tokens + 10 * second,
        )
        for second in range(1, 120)
    )  # fmt: skip
    found = fed(dying, faults)
    assert [event.kind for _, event in found] == [FaultKind.DEAD_DRAFT]
    assert found[0][0] <= 200.0 + 3 * 30.0


SILENT = (0.0, 0.0, 0.0, 0.0)
"""Nothing is accepted, because nothing is drafted."""


def stopped(seconds: Iterable[int], *, tokens: float = 30.0, drafts: float = 0.0) -> Iterator[Sample]:
    """A server that goes on answering, and drafts (almost) nothing."""
    return series(seconds, drafts=drafts, accepted=SILENT, tokens=tokens)


def test_a_server_that_drafts_no_longer_is_named_where_every_step_drafts() -> None:
    faults = Faults(drafts_always=True)
    ((at, event),) = fed(stopped(range(140)), faults)
    assert (at, event.kind, event.begins) == (68.0, FaultKind.DEAD_DRAFT, True)
    assert event.reason == "0 drafts for 1020 tokens in 34 s: it drafts no longer"
    ended = fed(series(range(140, 260), base=100_000.0), faults)
    assert [(event.kind, event.begins) for _, event in ended] == [(FaultKind.DEAD_DRAFT, False)]


def test_one_that_stops_after_it_has_drafted_is_named_too() -> None:
    faults = Faults(drafts_always=True)
    assert fed(series(range(100)), faults) == []
    after = (
        dataclasses.replace(one, drafts=990.0, draft_tokens=3960.0, accepted_tokens=2079.0)
        for one in series(range(100, 400))
    )
    ((at, event),) = fed(after, faults)
    assert event.kind == FaultKind.DEAD_DRAFT
    assert at <= 100 + 3 * 34


def test_tokens_without_drafts_are_no_fault_where_a_table_or_a_text_may_have_none() -> None:
    assert fed(stopped(range(600))) == []


def test_a_server_that_counts_no_drafts_is_not_judged_by_them() -> None:
    uncounted = (dataclasses.replace(one, counts_drafts=False) for one in stopped(range(600)))
    assert fed(uncounted, Faults(drafts_always=True)) == []


def test_few_tokens_without_drafts_are_no_fault() -> None:
    assert fed(stopped(range(600), tokens=1.0), Faults(drafts_always=True)) == []


def test_the_longest_drafts_that_are_all_accepted_are_no_fault() -> None:
    """One draft for 16 tokens: windows close by their drafts, late."""
    assert fed(series(range(600), drafts=2.0, accepted=(2.0,) * 15, tokens=32.0), Faults(drafts_always=True)) == []


def test_answers_of_one_token_are_no_fault() -> None:
    """They end with the token that reading the prompt makes."""
    one_each = (
        dataclasses.replace(one, histograms={TTFT: Histogram(bounds=(float("inf"),), counts=(one.generation_tokens,))})
        for one in stopped(range(600))
    )
    assert fed(one_each, Faults(drafts_always=True)) == []


def test_it_ends_after_two_good_windows() -> None:
    faults = Faults()
    fed(series(range(100), accepted=DEAD), faults)
    assert faults.active == (FaultKind.DEAD_DRAFT,)
    ended = fed(series(range(100, 200), base=10_000.0), faults)
    assert [(event.kind, event.begins) for _, event in ended] == [(FaultKind.DEAD_DRAFT, False)]
    assert faults.active == ()


def test_no_traffic_is_no_fault() -> None:
    assert fed(series(range(600), drafts=0.0, accepted=(0.0,) * 4, tokens=0.0, running=0.0)) == []


def test_a_few_bad_drafts_are_no_fault() -> None:
    """Fewer than 200 drafts say nothing, however long they take."""
    assert fed(series(range(600), drafts=0.5, accepted=(0.0,) * 4)) == []


def test_a_slow_server_is_judged_once_it_has_drafted_enough() -> None:
    ((at, event),) = fed(series(range(600), drafts=5.0, accepted=(0.0,) * 4))
    assert (at, event.kind) == (110.0, FaultKind.DEAD_DRAFT), "30 s that do not count, and two windows of 200 drafts"
    assert event.reason == "0 tokens accepted of 200 drafts in 40 s"


def test_the_first_window_after_a_start_does_not_count() -> None:
    assert fed(series(range(61), accepted=DEAD)) == []


def test_a_restart_begins_anew() -> None:
    """Counters that fall, or a new start time: what was before is forgotten, and a fault has ended."""
    faults = Faults()
    fed(series(range(100), accepted=DEAD), faults)
    found = fed(series(range(100, 161), accepted=DEAD, start=2000.0), faults)
    assert [(event.begins, event.reason) for _, event in found] == [(False, "the server was restarted")]


def test_a_draft_that_is_cut_off_after_its_window() -> None:
    cut = (9.0, 7.0, 5.0, 4.0, 0.0, 0.0, 0.0)
    ((_, event),) = fed(series(range(100), accepted=cut))
    assert (event.kind, event.begins) == (FaultKind.CUT_DRAFT, True)
    assert event.reason == "position 1 is accepted in 90% of drafts and position 5 and later never"


def test_a_k_that_follows_the_load_is_no_cut() -> None:
    """Under load a table drafts 4 tokens, so that nothing is accepted at positions 5 to 7."""
    moved = [
        dataclasses.replace(one, draft_tokens=one.drafts * 4)
        for one in series(range(200), accepted=(9.0, 7.0, 5.0, 4.0, 0.0, 0.0, 0.0))
    ]
    assert fed(moved) == []


def test_acceptance_that_falls_evenly_is_no_cut() -> None:
    assert fed(series(range(200), accepted=(5.0, 2.0, 0.5, 0.1, 0.0, 0.0, 0.0))) == []


def test_an_engine_that_hangs_with_an_idle_gpu() -> None:
    ((at, event),) = fed(series(range(200), drafts=0.0, accepted=(0.0,) * 4, tokens=0.0), power=20.0)
    assert at == 60.0
    assert event.reason == "1 running requests, but no token for 60 s; the GPU draws 20 W"


def test_a_long_prefill_is_no_hang() -> None:
    still = {"drafts": 0.0, "accepted": (0.0,) * 4, "tokens": 0.0}
    assert fed(series(range(600), **still), power=45.0) == []  # type: ignore[arg-type]
    assert fed(series(range(600), prompt=2048.0, **still)) == []  # type: ignore[arg-type]
    assert fed(series(range(290), **still)) == []  # type: ignore[arg-type]


def test_a_hang_where_the_power_is_unknown_takes_longer_to_be_named_and_ends_with_a_token() -> None:
    faults = Faults()
    still = series(range(302), drafts=0.0, accepted=(0.0,) * 4, tokens=0.0)
    ((at, _),) = fed(still, faults)
    assert at == 300.0
    ((_, event),) = fed(series(range(302, 304), drafts=0.0, accepted=(0.0,) * 4), faults)
    assert (event.kind, event.begins, event.reason) == (FaultKind.HANGS, False, "the server generates tokens again")


def idle(seconds: Iterable[int], tokens: float = 0.0) -> Iterator[Sample]:
    """A server without requests."""
    return series(seconds, drafts=0.0, accepted=(0.0,) * 4, tokens=0.0, running=0.0, base=tokens)


def test_a_server_that_hangs_between_two_requests_is_named_by_a_question_that_waits() -> None:
    """Its gauges say for ever that nothing runs, because the engine sends them with each step."""
    faults = Faults()
    silent = [one.at for one in idle(range(70)) if not faults.add(one, power_w=20.0) and faults.silent(power_w=20.0)]
    assert silent == [float(second) for second in range(60, 70)]
    asked = [(one.at, event) for one in idle(range(70, 200)) for event in faults.add(one, power_w=20.0, asked=True)]
    ((at, begins),) = asked
    assert at == 129.0
    assert begins.reason == "a question of the watch waits, but no token for 60 s; the GPU draws 20 W"
    assert fed(idle(range(200, 220)), faults, power=20.0) == [], "a question that was given up is no token"
    assert faults.silent(power_w=20.0), "so that its end is seen too"
    ((_, ends),) = fed(idle(range(220, 222), tokens=1.0), faults, power=20.0)
    assert (ends.kind, ends.begins) == (FaultKind.HANGS, False)
    assert not faults.silent(power_w=20.0)


def test_a_question_that_is_answered_in_time_is_no_fault() -> None:
    faults = Faults()
    assert fed(idle(range(100)), faults) == []
    assert [event for one in idle(range(100, 390)) for event in faults.add(one, asked=True)] == []
    assert fed(idle(range(390, 600), tokens=1.0), faults) == []


REFERENCE = Reference(seconds={(0, 1): 0.10, (4, 1): 0.12, (0, 8): 0.11, (4, 8): 0.30})
"""Of one request and of eight at once: at eight, four drafted tokens cost nearly three steps."""
POOR = (1.0, 0.3, 0.1, 0.1)
"""Per second of 10 drafts: an acceptance length of 1.15."""


def test_drafting_that_costs_more_than_it_gives_is_named() -> None:
    faults = Faults(reference=REFERENCE)
    ((at, event),) = fed(series(range(120), accepted=POOR), faults)
    assert (at, event.kind) == (90.0, FaultKind.SLOWER)
    assert event.reason == (
        "acceptance length 1.15 at k = 4 is worth 9.6 tokens/s a request, and 10.0 were measured without speculation "
        "(1 at once)"
    )
    ended = fed(series(range(120, 220), base=10_000.0), faults)
    assert [(one.kind, one.begins) for _, one in ended] == [(FaultKind.SLOWER, False)]


def test_the_same_acceptance_may_pay_for_one_request_and_not_for_eight() -> None:
    assert fed(series(range(120)), Faults(reference=REFERENCE)) == []
    ((_, event),) = fed(series(range(120), running=8.0, accepted=(8.0, 4.0, 2.0, 1.0)), Faults(reference=REFERENCE))
    assert "(8 at once)" in event.reason


def test_nothing_is_slower_where_the_steps_of_that_load_or_k_were_not_measured() -> None:
    assert fed(series(range(200), accepted=POOR)) == []
    assert fed(series(range(200), accepted=POOR, running=3.0), Faults(reference=REFERENCE)) == []
    assert fed(series(range(200), accepted=POOR[:3]), Faults(reference=REFERENCE)) == []
    assert fed(series(range(200), accepted=POOR, running=0.0), Faults(reference=REFERENCE)) == []
    moved = [dataclasses.replace(one, draft_tokens=one.drafts * 3.5) for one in series(range(200), accepted=POOR)]
    assert fed(moved, Faults(reference=REFERENCE)) == []


def test_a_window_that_reads_prompts_is_not_slower() -> None:
    """Few tokens a second: the speed of a window is not judged, only what its acceptance is worth."""
    slow = series(range(200), tokens=1.0, prompt=4096.0)
    assert fed(slow, Faults(reference=REFERENCE)) == []


def test_few_drafts_and_the_first_window_are_not_slower() -> None:
    assert fed(series(range(300), drafts=0.5, accepted=(0.05, 0.01, 0.0, 0.0)), Faults(reference=REFERENCE)) == []
    assert fed(series(range(61), accepted=POOR), Faults(reference=REFERENCE)) == []


def restarts(times: Iterable[int], until: int) -> list[tuple[float, Event]]:
    """A server that is started anew at these seconds."""
    starts = [0, *times]
    samples = (
        next(series([second], start=1000.0 + 100 * sum(begun <= second for begun in starts))) for second in range(until)
    )
    return fed(samples)


def test_three_restarts_within_ten_minutes_are_a_loop_that_ends_after_as_long_without() -> None:
    found = restarts((100, 200, 300), 1000)
    assert [(at, event.kind, event.begins) for at, event in found] == [
        (300.0, FaultKind.RESTARTS, True), (900.0, FaultKind.RESTARTS, False)
    ]  # fmt: skip
    assert found[0][1].reason == "3 restarts within 10 min"


def test_two_restarts_or_three_far_apart_are_no_loop() -> None:
    assert restarts((100, 200), 900) == []
    assert restarts((100, 500, 800), 1500) == []


def test_a_counter_that_falls_once_is_one_restart() -> None:
    faults = Faults()
    fed(series(range(10), base=1000.0), faults)
    fed(series(range(10, 20)), faults)
    assert faults.active == ()


def test_a_server_that_is_gone_is_told_once_and_its_next_sample_ends_it() -> None:
    faults = Faults()
    fed(series(range(5)), faults)
    assert [event.kind for event in faults.gone("it has exited")] == [FaultKind.GONE]
    assert faults.gone("it has exited") == []
    found = fed(series(range(6, 8), start=2000.0), faults)
    assert [(event.kind, event.begins) for _, event in found] == [(FaultKind.GONE, False)]


def test_a_shorter_window_speaks_sooner() -> None:
    faults = Faults(limits=Limits(window_s=20.0, hang_s=5.0, hang_without_power_s=5.0))
    ((at, _),) = fed(series(range(70), accepted=DEAD), faults)
    assert at == 60.0
    still = series(range(70, 90), base=10_000.0, drafts=0.0, accepted=(0.0,) * 4, tokens=0.0)
    hang = [event.kind for at, event in fed(still, faults) if event.begins]
    assert hang == [FaultKind.HANGS]
