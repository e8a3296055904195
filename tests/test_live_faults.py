"""Faults in counters: series of samples with a fault, and those that a naive rule would call one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gemmaspec.live.faults import Event, FaultKind, Faults
from gemmaspec.live.sample import Sample


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
    """Fewer than 200 drafts in a window say nothing."""
    assert fed(series(range(600), drafts=5.0, accepted=(0.0,) * 4)) == []


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
