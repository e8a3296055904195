"""tune's decisions: which arm next, which cannot win, when to stop, what to choose; and against real grids."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.load import load_profile
from gemmaspec.measure.bench.cells import NONE, Arm
from gemmaspec.measure.bench.result import text_of
from gemmaspec.measure.tune import stored
from gemmaspec.measure.tune.arms import Field, field_of
from gemmaspec.measure.tune.choose import TuneChoice, choose
from gemmaspec.measure.tune.next_arm import Done, Visit, next_visit, rule_out, rungs_of
from gemmaspec.measure.tune.trials import Tried, TriedCell, seconds_of

Speed = Callable[[Arm, int], float]
"""Tokens per second of an arm at a load."""


@dataclass
class Machine:
    """A machine whose speeds are known, on which a tuning is played through."""

    speed: Speed
    loads: tuple[int, ...]
    prompts: tuple[int, ...] = (8, 16, 32)
    start_s: float = 60.0
    fails: frozenset[str] = frozenset()
    noise: float = 0.0
    seed: int = 0
    acceptance: Callable[[Arm], tuple[float, ...]] = lambda arm: tuple(0.7**i for i in range(1, arm.k + 1))
    visits: list[Visit] = field(default_factory=list)
    spent: float = 0.0
    tried: Tried | None = None
    done: Done | None = None

    def play(self, arms: Field, *, budget_s: float = 1e9, at_most: int = 10**6) -> TuneChoice | None:
        """Tune until nothing is left, the budget ends or the visits are spent."""
        dice = random.Random(self.seed)
        tried = Tried(loads=self.loads, prompts=self.prompts)
        running: Arm | None = None
        for _ in range(at_most):
            visit = next_visit(tried, arms, running=running, left_s=budget_s - self.spent)
            if isinstance(visit, Done):
                self.done = visit
                break
            self.visits.append(visit)
            if running != visit.arm:
                self.spent += self.start_s
                starts = {**tried.starts, visit.arm.key: (*tried.starts.get(visit.arm.key, ()), self.start_s)}
                tried = replace(tried, starts=starts)
            if visit.arm.key in self.fails:
                tried, running = replace(tried, failed={**tried.failed, visit.arm.key: "the server died"}), None
                continue
            running = visit.arm
            for load in visit.loads:
                tried = replace(tried, cells=(*tried.cells, self._cell(tried, visit, load, dice)))
                self.spent += tried.cells[-1].seconds
            tried = rule_out(tried, arms)
        self.tried = tried
        return choose(tried, arms)

    def _cell(self, tried: Tried, visit: Visit, load: int, dice: random.Random) -> TriedCell:
        requests = tried.requests(visit.rung, load)
        speed = self.speed(visit.arm, load) * (1 + dice.gauss(0, self.noise))
        return TriedCell(
            arm=visit.arm.key,
            rung=visit.rung,
            load=load,
            tokens_per_second=speed,
            acceptance=self.acceptance(visit.arm),
            context=256,
            requests=requests,
            seconds=requests * 128 / speed + 5,
        )


# Real grids


def grid(file: str, compiled: str | None = None) -> dict[tuple[str, int], dict[int, Mapping[str, Any]]]:
    """A measured grid: (method, k) → requests at once → row; of two runs the mean."""
    found: dict[tuple[str, int], dict[int, Mapping[str, Any]]] = {}
    for row in json.loads((data.MEASUREMENTS / file).read_text())["rows"]:
        if compiled in (None, row["compile"]):
            own = found.setdefault((row["method"], row["k"]), {})
            before = own.get(row["concurrency"], row)
            mean = (before["tokens_per_second"] + row["tokens_per_second"]) / 2
            own[row["concurrency"]] = {**row, "tokens_per_second": mean}
    return found


def arms_of_grid(cells: Mapping[tuple[str, int], Any]) -> Field:
    """The arms of a grid, the middle k of each method first."""
    methods = dict.fromkeys(method for method, _ in cells if method != NONE)
    first, more = [], []
    for method in methods:
        own = sorted(k for name, k in cells if name == method)
        middle = own[len(own) // 2]
        first.append(Arm(profile=method, method=method, k=middle))
        more += [Arm(profile=method, method=method, k=k) for k in reversed(own) if k != middle]
    return Field(arms=(Arm(profile="own", method=NONE, k=0), *first, *more))


GRIDS = {
    "0.32.0": grid("h200-31b-nvfp4-0.32.0.json", '{"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY"}'),
    "0.26.0 compiled": grid("h200-31b-nvfp4.json", "default"),
    "0.26.0": grid("h200-31b-nvfp4.json", "-O0"),
}


def loads_of(cells: Mapping[tuple[str, int], Mapping[int, Any]]) -> list[int]:
    """The loads at which every arm of a grid was measured."""
    return sorted(set.intersection(*(set(own) for own in cells.values())))


REAL = [
    (name, loads)
    for name, cells in GRIDS.items()
    for number in (1, 2, 3)
    for loads in itertools.combinations(loads_of(cells), number)
]


def machine_of(cells: Mapping[tuple[str, int], Any], loads: tuple[int, ...], **more: Any) -> Machine:
    return Machine(
        speed=lambda arm, load: cells[(arm.method, arm.k)][load]["tokens_per_second"],
        acceptance=lambda arm: tuple(cells[(arm.method, arm.k)][1]["acceptance"]),
        loads=loads,
        **more,
    )


def best_of(cells: Mapping[tuple[str, int], Any], loads: Sequence[int]) -> float:
    """The best score of the whole grid, among arms that are slower than no speculation nowhere."""
    alone = cells[(NONE, 0)]

    def score(own: Mapping[int, Any]) -> float:
        times = [own[load]["tokens_per_second"] / alone[load]["tokens_per_second"] for load in loads]
        product = 1.0
        for one in times:
            product *= one
        return product ** (1 / len(loads)) if min(times) >= 1 else 0.0

    return max(score(own) for own in cells.values() if set(loads) <= set(own))


def score_of(cells: Mapping[tuple[str, int], Any], arm: Arm, loads: Sequence[int]) -> float:
    return best_of({(NONE, 0): cells[(NONE, 0)], (arm.method, arm.k): cells[(arm.method, arm.k)]}, loads)


@pytest.mark.parametrize(("name", "loads"), REAL, ids=str)
def test_the_choice_is_within_2_percent_of_the_best_of_a_measured_grid(name: str, loads: tuple[int, ...]) -> None:
    cells = GRIDS[name]
    machine = machine_of(cells, loads)
    choice = machine.play(arms_of_grid(cells))
    assert choice
    chosen = cells[(choice.arm.method, choice.arm.k)]
    alone = cells[(NONE, 0)]
    assert all(chosen[load]["tokens_per_second"] >= alone[load]["tokens_per_second"] for load in loads)
    assert score_of(cells, choice.arm, loads) >= 0.98 * best_of(cells, loads)
    for row in choice.loads:
        best = max(own[row.concurrency]["tokens_per_second"] for own in cells.values())
        assert cells[(row.fastest.method, row.fastest.k)][row.concurrency]["tokens_per_second"] >= 0.98 * best


def test_with_noise_of_one_percent_too_and_in_less_than_two_rounds_of_the_whole_grid() -> None:
    """What a tuning measures against a whole grid in two rounds, over every set of loads of the 0.32.0 grid."""
    cells = GRIDS["0.32.0"]
    measured = whole = 0
    for loads in [loads for name, loads in REAL if name == "0.32.0"]:
        machine = machine_of(cells, loads, noise=0.01, seed=len(loads))
        choice = machine.play(arms_of_grid(cells))
        assert choice
        assert machine.tried
        assert score_of(cells, choice.arm, loads) >= 0.98 * best_of(cells, loads)
        measured += len(machine.tried.cells)
        whole += 2 * len(cells) * len(loads)
    assert measured <= 0.85 * whole


# Decisions

LOADS = (1, 4)


def fast(arm: Arm, load: int) -> float:
    """A machine on which k=4 is best alone and k=2 under load, and `other` drafts a little worse."""
    times = {0: (1.0, 1.0), 1: (1.5, 1.3), 2: (1.8, 1.55), 4: (2.0, 1.5), 8: (1.7, 0.9)}[arm.k]
    return (50.0, 180.0)[LOADS.index(load)] * times[LOADS.index(load)] * (0.9 if arm.profile == "other" else 1.0)


def arm(k: int, profile: str = "own", **more: Any) -> Arm:
    return Arm(profile=profile, method="mtp" if k else NONE, k=k, **more)


def some(*ks: int, profile: str = "own") -> tuple[Arm, ...]:
    return tuple(arm(k, profile) for k in ks)


WHOLE = Field(arms=(arm(0), arm(4), arm(4, "other"), *some(8, 2, 1), *some(8, 2, 1, profile="other")))


def test_the_target_alone_is_measured_first_then_each_drafts_own_k() -> None:
    machine = Machine(speed=fast, loads=LOADS)
    assert machine.play(WHOLE)
    assert [str(one.arm) for one in machine.visits[:3]] == ["no speculation", "own: mtp k=4", "other: mtp k=4"]
    assert [one.arm.key for one in machine.visits].count("own/none/0") >= 1
    assert machine.done == Done(why="every configuration that could win was tried", complete=True)


def test_the_choice_and_its_k_table() -> None:
    choice = Machine(speed=fast, loads=LOADS).play(WHOLE)
    assert choice
    assert choice.arm == arm(4)
    assert [(one.concurrency, one.k, round(one.times, 2)) for one in choice.loads] == [(1, 4, 2.0), (4, 2, 1.55)]
    assert choice.why.startswith("1.73 times the speed without speculation, over 1 and 4 at once")


def test_what_a_prediction_rules_out_is_not_started_and_says_why() -> None:
    def slow_other(one: Arm, load: int) -> float:
        return fast(one, load) * (0.4 if one.profile == "other" else 1.0)

    machine = Machine(speed=slow_other, loads=LOADS)
    choice = machine.play(WHOLE)
    assert choice
    assert choice.arm == arm(4)
    assert machine.tried
    ruled_out = machine.tried.ruled_out
    assert {"other/mtp/2", "other/mtp/1"} <= set(ruled_out)
    assert "tok/s at 4 against no speculation" in ruled_out["other/mtp/2"]
    assert not {one.arm.key for one in machine.visits} & set(ruled_out)


def test_an_arm_that_is_merely_predicted_a_bit_lower_is_measured() -> None:
    machine = Machine(speed=fast, loads=LOADS)
    machine.play(Field(arms=some(0, 4, 2)))
    assert "own/mtp/2" in {one.arm.key for one in machine.visits}


def test_the_better_half_is_measured_again_with_more_prompts_and_the_rest_is_not() -> None:
    def close(one: Arm, load: int) -> float:
        return 50.0 if one.alone else 100.0 + int(one.profile[1:])

    field_ = Field(arms=(arm(0), *(arm(4, f"p{n}") for n in range(6))))
    machine = Machine(speed=close, loads=(1,))
    machine.play(field_)
    rungs = [sum(not one.arm.alone for one in machine.visits if one.rung == rung) for rung in range(3)]
    assert rungs == [6, 3, 2]
    assert machine.tried
    assert sorted({(one.rung, one.requests) for one in machine.tried.cells}) == [(0, 8), (1, 16), (2, 32)]


def test_an_arm_far_ahead_is_not_measured_again() -> None:
    machine = Machine(speed=fast, loads=LOADS)
    machine.play(Field(arms=some(0, 4)))
    assert [(one.arm.k, one.rung) for one in machine.visits] == [(0, 0), (4, 0)]


def test_a_server_that_runs_is_measured_on_before_another_is_started() -> None:
    def close(one: Arm, load: int) -> float:
        return 100.0 + one.k / 10 if one.k else 50.0

    machine = Machine(speed=close, loads=(1,))
    machine.play(Field(arms=some(0, 4, 2)))
    arms = [one.arm for one in machine.visits]
    starts = sum(a != b for a, b in itertools.pairwise([None, *arms]))
    assert starts < len(arms)


def test_speculation_that_never_pays_is_left_off() -> None:
    choice = Machine(speed=lambda one, load: 100.0 if one.alone else 80.0, loads=LOADS).play(WHOLE)
    assert choice
    assert choice.arm.alone
    assert [one.k for one in choice.loads] == [0, 0]
    assert "nothing that drafts is more than 1% faster" in choice.why


def test_nothing_slower_than_no_speculation_at_any_load_is_chosen() -> None:
    def at_one_alone(one: Arm, load: int) -> float:
        return 100.0 if one.alone else (300.0 if load == 1 else 95.0)

    choice = Machine(speed=at_one_alone, loads=LOADS).play(Field(arms=some(0, 4)))
    assert choice
    assert choice.arm.alone
    assert "own: mtp k=4 is faster over all, and slower than no speculation at 4 at once (0.95 times)" in choice.why
    assert [(one.concurrency, str(one.fastest)) for one in choice.loads] == [(1, "own: mtp k=4"), (4, "no speculation")]


@pytest.mark.parametrize(
    ("one", "other", "chosen"),
    [
        (arm(4), arm(2), 2),
        (arm(2, memory=900), arm(2, "other", memory=300), "other"),
        (arm(2, required=3), arm(2, "other", required=0), "other"),
        (arm(2, memory=300, required=3), arm(2, "other", memory=900), "own"),
    ],
)
def test_a_tie_of_one_percent_goes_to_smaller_k_less_memory_fewer_patches(one: Arm, other: Arm, chosen: Any) -> None:
    def near(which: Arm, load: int) -> float:
        return 100.0 if which.alone else 200.0 if which == one else 198.5

    choice = Machine(speed=near, loads=(1,)).play(Field(arms=(arm(0), one, other)))
    assert choice
    assert chosen in (choice.arm.k, choice.arm.profile)


def test_more_than_one_percent_is_no_tie() -> None:
    choice = Machine(speed=lambda which, load: {0: 100.0, 2: 197.0, 4: 200.0}[which.k], loads=(1,)).play(
        Field(arms=some(0, 4, 2))
    )
    assert choice
    assert choice.arm.k == 4


def test_a_failed_start_is_a_result_and_the_rest_is_tried() -> None:
    machine = Machine(speed=fast, loads=LOADS, fails=frozenset({"own/mtp/4"}))
    choice = machine.play(WHOLE)
    assert choice
    assert choice.arm == arm(2)
    assert machine.tried
    assert machine.tried.failed == {"own/mtp/4": "the server died"}


def test_where_no_draft_starts_speculation_is_left_off() -> None:
    choice = Machine(speed=fast, loads=LOADS, fails=frozenset({"own/mtp/4"})).play(Field(arms=some(0, 4)))
    assert choice
    assert (choice.arm.alone, choice.why) == (True, "no server with speculation started")


@pytest.mark.parametrize("visits", range(1, 12))
def test_an_interrupted_tuning_has_a_valid_answer(visits: int) -> None:
    machine = Machine(speed=fast, loads=LOADS)
    choice = machine.play(WHOLE, at_most=visits)
    if visits == 1:
        assert choice is None
        return
    assert choice
    assert min(choice.worth.times) >= 1
    measured = {one.arm for one in machine.tried.cells} if machine.tried else set()
    assert choice.arm.key in measured


@pytest.mark.parametrize("minutes", [4, 6, 8, 12, 20])
def test_the_budget_is_kept(minutes: int) -> None:
    machine = Machine(speed=fast, loads=LOADS)
    choice = machine.play(WHOLE, budget_s=minutes * 60)
    assert machine.spent <= minutes * 60
    assert machine.done
    assert machine.done.complete is False
    assert "the budget ends: " in machine.done.why
    assert choice is not None or len(machine.visits) == 1


def test_knobs_are_tried_on_the_fastest_alone() -> None:
    knob = Arm(profile="own", method=NONE, k=0, overrides=("env.A=1",), knob="env.A=1")
    field_ = replace(WHOLE, knobs=(knob, replace(knob, profile="other")))

    def better(one: Arm, load: int) -> float:
        return fast(one, load) * (1.2 if one.knob else 1.0)

    machine = Machine(speed=better, loads=LOADS)
    choice = machine.play(field_)
    assert choice
    assert choice.arm == arm(4, overrides=("env.A=1",), knob="env.A=1")
    assert {one.arm.profile for one in machine.visits if one.arm.knob} == {"own"}


def by_load(one: Arm, load: int) -> float:
    """Tokens per second as an H200 has them for mtp: k=8 gains a little alone and loses much under load."""
    alone, loaded = {0: (90, 600), 2: (150, 860), 4: (175, 840), 8: (182, 640)}[one.at(load)]
    return float(alone if load == 1 else loaded)


TABLED = Field(arms=some(0, 4, 8, 2), tables=frozenset({"own"}))


def test_a_table_of_k_is_measured_like_any_arm_and_chosen_where_it_gains_and_nowhere_loses() -> None:
    machine = Machine(speed=by_load, loads=(1, 8))
    choice = machine.play(TABLED)
    assert choice
    assert choice.arm.table == ((1, 8), (8, 2))
    assert choice.arm.overrides == ("speculative.k_by_requests={1: 8, 8: 2}",)
    assert [(one.concurrency, one.k) for one in choice.loads] == [(1, 8), (8, 2)]
    assert "4% over own: mtp k=4 at 1 at once, and behind it at none" in choice.why
    without = Machine(speed=by_load, loads=(1, 8)).play(replace(TABLED, tables=frozenset()))
    assert without
    assert without.arm == arm(4)


@pytest.mark.parametrize(("at_1", "at_8"), [(1.0, 0.96), (0.94, 1.0), (0.98, 0.99)])
def test_a_table_that_loses_at_a_load_or_gains_too_little_is_left(at_1: float, at_8: float) -> None:
    def costly(one: Arm, load: int) -> float:
        return by_load(one, load) * ((at_1 if load == 1 else at_8) if one.table else 1)

    choice = Machine(speed=costly, loads=(1, 8)).play(TABLED)
    assert choice
    assert choice.arm == arm(4)


def test_a_profiles_own_table_is_an_arm_beside_each_k_alone() -> None:
    more = ("speculative.num_speculative_tokens=8", "speculative.k_by_requests={1: 8, 8: 2}")
    found = field_of(load_profile("tiny-cpu", overrides=more).profile, [], loads=(1, 8))
    own, fixed, *_ = found.arms[1:]
    assert (own.table, own.overrides) == (((1, 8), (8, 2)), ())
    assert (fixed.k, fixed.table, fixed.overrides) == (8, (), ("speculative.k_by_requests=",))
    for one in found.arms[2:]:
        spec = load_profile("tiny-cpu", overrides=(*more, *one.overrides)).profile.speculative
        assert spec
        assert (spec.num_speculative_tokens, spec.k_by_requests) == (one.k, None)


# Arms


def test_the_arms_of_shipped_profiles() -> None:
    base, *others = (load_profile(f"spark-31b-{name}").profile for name in ("mtp", "dspark", "e2b", "eagle3"))
    found = field_of(base, others, loads=(1, 4))
    assert [(one.profile, one.k) for one in found.arms[:3]] == [
        ("spark-31b-mtp", 0),
        ("spark-31b-mtp", 7),
        ("spark-31b-dspark", 7),
    ]
    assert {one.k for one in found.arms if one.method == "dspark"} == {7, 4}
    assert found.left_out["spark-31b-e2b"].startswith("its serve.max_num_seqs is 1, below --concurrency ")
    assert {one.knob for one in found.knobs if one.profile == "spark-31b-mtp"} >= {"model runner v1"}
    assert "model runner v1" not in {one.knob for one in found.knobs if one.profile == "spark-31b-dspark"}


SAMPLED = {"accepted by blocks", "draft sampled"}


@pytest.mark.parametrize(
    ("profile", "sets", "sampled", "tried"),
    [
        ("nvidia-31b-mtp", (), False, {"matrices by Marlin"}),
        ("nvidia-31b-mtp", (), True, {"matrices by Marlin"} | SAMPLED),
        ("spark-31b-mtp", ("serve.linear_backend=marlin",), True, SAMPLED),
        ("nvidia-26b-a4b-dflash", (), True, {"accepted by blocks"}),  # a DFlash head drafts greedily
        ("spark-26b-a4b-mtp", (), True, SAMPLED),  # its weights are FP8
        ("nvidia-31b-mtp", ("image=vllm/vllm-openai:v0.21.0",), True, set()),
    ],
)
def test_what_no_default_takes_is_tried(profile: str, sets: tuple[str, ...], sampled: bool, tried: set[str]) -> None:
    own = load_profile(profile, overrides=sets).profile
    found = field_of(own, [], loads=(1,), sampled=sampled)
    assert {one.knob for one in found.knobs} & ({"matrices by Marlin"} | SAMPLED) == tried
    for knob in found.knobs:
        load_profile(profile, overrides=(*sets, *knob.overrides))


@pytest.mark.parametrize(
    ("profile", "sets", "tried"),
    [
        ("spark-31b-mtp", (), True),
        ("nvidia-31b-qat-mtp", (), True),
        ("spark-31b-mtp", ("draft.quantization=fp8",), False),
        ("spark-31b-mtp", ("draft.model=owner/gemma-4-31B-it-assistant-FP8",), False),
        ("spark-31b-mtp", ("image=vllm/vllm-openai:v0.25.1",), False),
        ("spark-31b-dspark", (), False),
        ("spark-31b-e2b", (), False),
    ],
)
def test_an_assistant_is_tried_with_its_matrices_in_fp8(profile: str, sets: tuple[str, ...], *, tried: bool) -> None:
    """Computed for a Spark: 939 MB a pass of the 31B's become 738; answers are the target's own."""
    own = load_profile(profile, overrides=sets).profile
    knobs = {one.knob: one.overrides for one in field_of(own, [], loads=(1,)).knobs}
    assert ("draft's matrices in FP8" in knobs) is tried
    if tried:
        assert load_profile(profile, overrides=knobs["draft's matrices in FP8"]).profile.draft.quantization == "fp8"  # type: ignore[union-attr]


def test_a_cpu_has_neither_another_runner_nor_graphs_to_try() -> None:
    patched = field_of(load_profile("tiny-cpu").profile, [], loads=(1,), patched={"tiny-cpu"})
    assert [(one.knob, one.overrides) for one in patched.knobs] == [
        ("without patches for speed", ("patches.speed=off",))
    ]
    found = field_of(load_profile("tiny-cpu").profile, [], loads=(1,), knobs=["env.A=1"])
    assert [one.knob for one in found.knobs] == ["env.A=1"]


@pytest.mark.parametrize(
    ("machine", "image", "own", "tried"),
    [
        ("h200", "v0.32.0", None, {"attention backend TRITON_ATTN"}),  # there vLLM itself takes FlashAttention
        ("h200", "v0.32.0", "TRITON_ATTN", {"attention backend FLASH_ATTN"}),
        ("nvidia", "v0.32.0", None, {"attention backend TRITON_ATTN"}),
        ("h200", "v0.23.0", None, set()),
        ("b200", "v0.32.0", None, set()),  # FlashAttention has no kernels for its heads of 512
        ("dgx-spark", "v0.32.0", None, set()),
    ],
)
def test_the_other_attention_backend_is_tried_where_there_is_one(
    machine: str, image: str, own: str | None, tried: set[str]
) -> None:
    set_ = [
        f"machine={machine}",
        f"image=vllm/vllm-openai:{image}",
        f"serve.attention_backend={own or 'null'}",
    ]
    found = field_of(load_profile("nvidia-31b-mtp", overrides=set_).profile, [], loads=(1,))
    assert {one.knob for one in found.knobs if one.knob.startswith("attention")} == tried


def test_another_target_or_machine_is_no_arm() -> None:
    base = load_profile("tiny-cpu").profile
    others = [load_profile(name).profile for name in ("spark-31b-mtp", "nvidia-31b-mtp")]
    found = field_of(base, others, loads=(1,))
    assert set(found.left_out) == {"spark-31b-mtp", "nvidia-31b-mtp"}
    shorter = load_profile("tiny-cpu-mtp", overrides=["serve.max_model_len=512"]).profile
    assert field_of(base, [shorter], loads=(1,)).left_out == {"tiny-cpu-mtp": "its context ends at 512 tokens"}


def test_nothing_to_choose_from_is_told() -> None:
    with pytest.raises(UsageError, match="nothing to choose from: spark-31b does not speculate"):
        field_of(load_profile("spark-31b").profile, [], loads=(1,))


def test_ks_that_are_named_take_the_place_of_the_usual_ones() -> None:
    found = field_of(load_profile("tiny-cpu").profile, [], ks=(0, 3, 4), loads=(1,))
    assert [(one.k, one.overrides) for one in found.arms] == [
        (0, ()),
        (4, ()),
        (3, ("speculative.num_speculative_tokens=3",)),
    ]


@pytest.mark.parametrize(
    ("each", "rounds", "rungs"), [(4, 3, (1, 2, 4)), (1, 3, (1, 1, 1)), (10, 3, (3, 5, 10)), (4, 1, (4,))]
)
def test_each_rung_asks_twice_the_prompts(each: int, rounds: int, rungs: tuple[int, ...]) -> None:
    assert rungs_of(each, rounds) == rungs


@pytest.mark.parametrize(("text", "seconds"), [("45m", 2700), ("1h30m", 5400), ("90s", 90), ("1.5h", 5400)])
def test_a_budget_is_a_length_of_time(text: str, seconds: float) -> None:
    assert seconds_of(text, "--budget") == seconds


@pytest.mark.parametrize("text", ["", "45", "m", "45 minutes", "-5m", "1h-", "0m", "1d"])
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="--budget"):
        seconds_of(text, "--budget")


# The file of what was tried


def test_what_was_tried_is_read_again() -> None:
    machine = Machine(speed=fast, loads=LOADS)
    machine.play(WHOLE)
    assert machine.tried
    document = {"kind": stored.KIND, "schema": 1, "settings": {}, "provenance": {}, "spent_s": 1.0}
    text = text_of({**document, **stored.tried_json(machine.tried, WHOLE)})
    assert stored.parse(text, file="x")[1] == machine.tried


@pytest.mark.parametrize("text", ["", "[]", "{", '{"kind": "gemmaspec tune", "schema": 1}', "[" * 100_000])
def test_a_damaged_file_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="x is damaged"):
        stored.parse(text, file="x")


def test_a_dry_run_says_which_graphs_its_profile_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["tune", "nvidia-31b-mtp", "--dry-run", "--set", "machine=h100"]
    assert run([*asked, "--set", "serve.attention_backend="]) == 0
    assert "CUDA graphs: target PIECEWISE, draft NONE: TRITON_FLASH_ATTN" in " ".join(capsys.readouterr().out.split())
    assert run(asked) == 0
    assert "CUDA graphs" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"), [("serve.foo=1", "serve.foo: unknown key"), ("serve.port", "must be KEY=VALUE")]
)
def test_a_mistake_in_what_is_to_be_tried_is_told_before_anything_starts(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", "nvidia-31b-mtp", "--dry-run", "--try", text]) == 2
    assert said in capsys.readouterr().err
