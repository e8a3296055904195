"""`gemmaspec tune` with fake servers: what it writes, and what it does when something goes wrong."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gemmaspec.cli.app import run
from gemmaspec.cli.tune import _terminated
from gemmaspec.core.errors import EnvironmentMissing, StartFailed, TimedOut
from gemmaspec.core.lock.document import Lock
from gemmaspec.core.profile.find import own_folder
from gemmaspec.core.profile.load import load_profile
from gemmaspec.measure.bench.cells import Arm, Task
from gemmaspec.measure.cell import Asking
from gemmaspec.measure.lengths import served
from gemmaspec.measure.servers.bench_cells import Measuring
from gemmaspec.measure.servers.bench_server import Servers
from gemmaspec.measure.servers.tune import state_file
from gemmaspec.measure.servers.tune_field import Compared
from gemmaspec.measure.tune.launches import Launches, LaunchRow
from gemmaspec.measure.tune.trials import TuneRequest
from gemmaspec.run.engine.server import Server, server_at
from gemmaspec.serve.up import tuned_remark, what_runs
from tests.support.fake_engine import FakeMachine
from tests.support.fake_nvidia_smi import FakeNvidiaSmi, card
from tests.support.fake_vllm import FakeVllm, fake_vllm
from tests.support.fixtures import PYTHON, up

LOCK = {"engine": "process", "target.model": "state:tiny/tiny-target", "versions.vllm": "0.32.0"}


class Fakes:
    """One fake server for every arm: `behave` makes it the arm's, or raises what its start does."""

    def __init__(self, server: FakeVllm) -> None:
        self.server = server
        self.started: list[str] = []
        self.closed = 0
        self.no_launches: EnvironmentMissing | None = None
        """Why launch parameters cannot be measured."""
        self.speeds: Callable[[Arm], float | None] = lambda arm: {0: 50.0, 2: 90.0, 4: 60.0}.get(arm.k, 70.0)
        """Tokens per second of an arm; None: the fake server is really measured, so that it can fail."""
        self.load = 1
        """Requests at once of the cell that is measured."""
        self.behave: Callable[[Arm], None] = lambda arm: None

    def serving(self, servers: Servers, arm: Arm) -> tuple[Server, None]:
        """Take the place of the start of a server."""
        if servers._arm != arm:
            self.behave(arm)
            servers._arm = arm
            self.started.append(f"{servers._loaded.profile.name} {arm.said}")
        self.server.k, self.server.accepts, self.server.step_s = arm.k, min(arm.k, 2), 0.001
        servers._model = served(self.server_of("any"), None)
        servers.facts[arm.name] = {"vllm": "0.32.0", "lock": LOCK}
        return replace(self.server_of(servers._loaded.profile.name), speculates=not arm.alone), None

    def server_of(self, name: str) -> Server:
        """The fake server under a name."""
        return replace(server_at(self.server.url, option="--url", name=name), model="fake-model")

    def cell(self, measuring: Measuring, asking: Asking, task: Task, *, limit: int | None) -> dict[str, Any]:
        """Take the place of a measurement, where the speeds are given."""
        self.load = task.cell.concurrency
        speed = self.speeds(task.arm)
        if speed is None:
            return _measured(measuring, asking, task, limit=limit)
        return {
            "tokens_per_second": speed * task.cell.concurrency,
            "acceptance": [0.7**i for i in range(1, task.arm.k + 1)],
            "prompt_tokens": 20,
            "step_ms": 10.0,
            "requests": 2,
            "reference": {"steady": True},
        }


_measured = Measuring.cell


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fakes]:
    with fake_vllm() as server:
        found = Fakes(server)
        monkeypatch.setattr(Servers, "serving", lambda servers, arm: found.serving(servers, arm))
        monkeypatch.setattr(Measuring, "cell", lambda *one, **more: found.cell(*one, **more))
        monkeypatch.setattr(Servers, "arms", lambda servers, wanted: tuple(wanted))
        yield found


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    folder = tmp_path / "prompts"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    return folder


@pytest.fixture
def tune(prompts: Path) -> Callable[..., int]:
    """Run the command with small prompts; more arguments come last."""

    def command(*more: str, profile: str = "tiny-cpu") -> int:
        own = ["--prompts", str(prompts), "--each", "1", "--max-tokens", "16", "--repeats", "0", "--concurrency", "1"]
        return run(["tune", profile, "--no-others", "--k", "2,4", *own, *more])

    return command


def test_it_writes_a_profile_that_starts_the_fastest_and_says_on_what_it_was_measured(
    fakes: Fakes, tune: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune() == 0
    printed = capsys.readouterr()
    assert fakes.started[:2] == ["tiny-cpu no speculation", "tiny-cpu draft_model k=4"]
    file = own_folder() / "tiny-cpu-tuned.yaml"
    loaded = load_profile("tiny-cpu-tuned")
    assert loaded.file == file
    assert loaded.profile.speculative
    assert loaded.profile.speculative.num_speculative_tokens == 2
    assert loaded.profile.tuned
    assert loaded.profile.tuned.complete is True
    assert [(one.concurrency, one.k) for one in loaded.profile.tuned.k_by_load] == [(1, 2)]
    assert loaded.profile.tuned.ran == LOCK
    assert "chosen      tiny-cpu: draft_model k=2" in printed.out
    assert f"written to  {file}" in printed.out
    assert "next        gemmaspec up tiny-cpu-tuned" in printed.out
    assert "left" in printed.err
    assert run(["profile", "lint", "tiny-cpu-tuned"]) == 0


def test_the_next_command_can_be_copied_whatever_the_file_is_named(
    fakes: Fakes, tune: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my profiles" / "own.yaml"
    file.parent.mkdir()
    assert tune("--out", str(file)) == 0
    assert f"next        gemmaspec up '{file}'\n" in capsys.readouterr().out


def test_a_table_of_k_that_is_faster_is_measured_and_written(fakes: Fakes, tune: Callable[..., int]) -> None:
    speeds = {1: {0: 50.0, 2: 70.0, 4: 90.0}, 4: {0: 50.0, 2: 80.0, 4: 60.0}}
    fakes.speeds = lambda arm: speeds[fakes.load][arm.at(fakes.load)]
    assert tune("--concurrency", "1,4") == 0
    assert "tiny-cpu draft_model k=4, k_by_requests {1: 4, 4: 2}" in fakes.started
    profile = load_profile("tiny-cpu-tuned").profile
    assert profile.speculative
    assert profile.speculative.k_by_requests == {1: 4, 4: 2}
    assert profile.tuned
    assert [(one.concurrency, one.k) for one in profile.tuned.k_by_load] == [(1, 4), (4, 2)]
    assert run(["profile", "lint", "tiny-cpu-tuned"]) == 0


@pytest.mark.parametrize("override", ["runtime.vllm=0.23.0", "serve.extra_args=[--data-parallel-size, '2']"])
def test_no_table_is_tried_where_the_release_or_lint_refuses_it(override: str) -> None:
    assert Compared.of(TuneRequest(profile="tiny-cpu", budget_s=1, others=False)).field.tables
    asked = TuneRequest(profile="tiny-cpu", budget_s=1, others=False, overrides=(override,))
    assert not Compared.of(asked).field.tables


def test_leaving_speculation_off_is_an_answer(
    fakes: Fakes, tune: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.speeds = lambda arm: 50.0 if arm.alone else 40.0
    assert tune("--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["choice"]["method"] == "none"
    profile = load_profile("tiny-cpu-tuned").profile
    assert (profile.draft, profile.speculative) == (None, None)


def test_an_arm_that_does_not_start_and_one_that_dies_are_results(
    fakes: Fakes, tune: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def behave(arm: Arm) -> None:
        if arm.k == 2:
            raise StartFailed("the server died while loading")
        fakes.server.dies_at = len(fakes.server.bodies) + 4 if arm.k == 4 else None

    fakes.behave = behave
    fakes.speeds = lambda arm: None if arm.k == 4 else {0: 50.0, 3: 70.0}[arm.k]
    assert tune("--k", "2,4,3") == 0
    printed = capsys.readouterr()
    assert "tiny-cpu: draft_model k=2 is left out: the server died while loading" in printed.err
    assert "tiny-cpu: draft_model k=4 is left out: 1 at once: the server closed the connection" in printed.err
    assert "chosen      tiny-cpu: draft_model k=3" in printed.out


def test_a_target_that_does_not_start_alone_ends_it(
    fakes: Fakes, tune: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def behave(arm: Arm) -> None:
        raise EnvironmentMissing("no GPU")

    fakes.behave = behave
    assert tune() == 4
    assert "the target failed without speculation, the baseline of every comparison: no GPU" in capsys.readouterr().err


LAUNCHES = "prompt:9,512,2=32,32,4,2 matrix:9,5376,8192,8=128,64,64,32,4,2,mma"


@pytest.fixture
def measured(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The profiles whose launches are measured; what is found is a FAKE."""
    profiles: list[str] = []
    rows = [
        LaunchRow(key=key, best=best, turns=[(18.4, 16.8)], tried=16, wrong=0, failed=0)
        for key, _, best in (row.partition("=") for row in LAUNCHES.split())
    ]

    def launches_of(compared: Compared, *_: object) -> Launches:
        profiles.append(compared.base.profile.name)
        if fakes.no_launches:
            raise fakes.no_launches
        return Launches(rows=rows)

    monkeypatch.setattr("gemmaspec.measure.servers.tune.launches_of", launches_of)
    return profiles


def test_launches_that_are_faster_are_in_the_profile_with_the_patches_that_read_them(
    fakes: Fakes, tune: Callable[..., int], measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.speeds = lambda arm: (90.0 if arm.k == 2 else 50.0) * (1.2 if "launch parameters" in arm.knob else 1.0)
    assert tune(profile="nvidia-31b-mtp") == 0
    assert measured == ["nvidia-31b-mtp"]
    profile = load_profile("nvidia-31b-mtp-tuned").profile
    assert profile.env["GEMMASPEC_LAUNCHES"] == LAUNCHES
    assert {"humming-launch-params", "triton-launch-params"} <= {*profile.patches.speed}
    assert run(["profile", "lint", "nvidia-31b-mtp-tuned"]) == 0
    capsys.readouterr()
    assert tune("--continue", profile="nvidia-31b-mtp") == 0
    assert measured == ["nvidia-31b-mtp"], "they are measured once"


def test_launches_are_tried_on_whichever_profile_is_fastest(
    fakes: Fakes, tune: Callable[..., int], measured: list[str]
) -> None:
    def speed(arm: Arm) -> float:
        mine = 90.0 if (arm.profile, arm.k) == ("spark-31b-dspark", 4) else 50.0
        return mine * (1.2 if "launch parameters" in arm.knob else 1.0)

    fakes.speeds = speed
    assert tune("--arm", "spark-31b-dspark", profile="spark-31b-mtp") == 0
    assert measured == ["spark-31b-mtp"]
    assert load_profile("spark-31b-mtp-tuned").profile.env["GEMMASPEC_LAUNCHES"] == LAUNCHES


@pytest.mark.usefixtures("measured")
def test_a_tuning_goes_on_without_launches(
    fakes: Fakes, tune: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.no_launches = EnvironmentMissing("nothing was measured: torch sees no GPU")
    assert tune(profile="nvidia-31b-mtp") == 0
    assert "launch parameters are not tried: nothing was measured: torch sees no GPU" in capsys.readouterr().err
    assert "GEMMASPEC_LAUNCHES" not in load_profile("nvidia-31b-mtp-tuned").profile.env


def test_ctrl_c_leaves_the_best_of_what_was_measured_and_resume_goes_on(
    fakes: Fakes, tune: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def behave(arm: Arm) -> None:
        if arm.k == 2:
            raise KeyboardInterrupt

    fakes.behave = behave
    assert tune() == 130
    printed = capsys.readouterr()
    assert "2 measured cells are kept, and the best of them is tiny-cpu: draft_model k=4" in printed.err
    assert "--continue" in printed.err
    found = load_profile("tiny-cpu-tuned").profile
    assert found.tuned
    assert found.tuned.complete is False
    fakes.behave, fakes.started = lambda arm: None, []
    assert tune("--continue") == 0
    assert fakes.started[0] == "tiny-cpu draft_model k=2"
    found = load_profile("tiny-cpu-tuned").profile
    assert found.tuned
    assert found.tuned.complete is True
    assert found.speculative
    assert found.speculative.num_speculative_tokens == 2


def test_ctrl_c_before_anything_was_compared_writes_nothing(
    fakes: Fakes, tune: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def behave(arm: Arm) -> None:
        if arm.k:
            raise KeyboardInterrupt

    fakes.behave = behave
    assert tune() == 130
    assert "interrupted before anything was compared; 1 measured cell is kept" in capsys.readouterr().err
    assert not (own_folder() / "tiny-cpu-tuned.yaml").exists()


def test_a_termination_is_taken_for_ctrl_c() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), _terminated():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_tuning_that_was_cut_short_replaces_no_whole_one(
    fakes: Fakes, tune: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune() == 0
    file = own_folder() / "tiny-cpu-tuned.yaml"
    before = file.read_text()

    def behave(arm: Arm) -> None:
        if arm.k == 2:
            raise KeyboardInterrupt

    fakes.behave = behave
    assert tune() == 130
    assert file.read_text() == before
    assert "was left unchanged, because a complete tuning wrote it" in capsys.readouterr().err
    assert state_file("tiny-cpu-tuned").with_suffix(".before.json").is_file()


def test_a_budget_that_is_too_small_for_one_arm_is_told_and_loses_nothing(
    fakes: Fakes, tune: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.speeds = lambda _: None
    assert tune("--budget", "0.3s") == 2
    said = capsys.readouterr().err
    assert "--budget is too small for one start: the budget" in said
    assert "1 measured cell is kept" in said
    assert "with --continue" in said
    fakes.speeds = lambda arm: 1.0
    assert tune("--continue") == 0
    assert fakes.started.count("tiny-cpu no speculation") == 1


def test_a_target_that_is_not_ready_within_the_budget_is_told(
    fakes: Fakes, tune: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def behave(arm: Arm) -> None:
        raise TimedOut("not ready after 1 s: loading")

    fakes.behave = behave
    assert tune("--budget", "1s") == 2
    assert "--budget is too small for one start: the target alone was not ready in 1 s" in capsys.readouterr().err


def test_a_run_is_not_resumed_as_another_one(
    fakes: Fakes, tune: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune("--continue") == 2
    assert "there is nothing to resume" in capsys.readouterr().err
    assert tune() == 0
    assert tune("--continue", "--max-tokens", "32") == 2
    assert "was started with another max_tokens: 16" in capsys.readouterr().err
    state_file("tiny-cpu-tuned").write_text("{}")
    assert tune("--continue") == 2
    assert "is damaged" in capsys.readouterr().err


def test_prompts_longer_than_the_context_are_told(
    fakes: Fakes, tune: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    fakes.server.max_model_len, fakes.speeds = 12, lambda _: None
    assert tune() == 2
    assert "no prompt fits: the server's context is 12 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--budget", "soon"], "--budget must be a time such as 45m, 1h30m or 90s, not 'soon'"),
        (["--concurrency", "9"], "runs 4 concurrent requests (serve.max_num_seqs)"),
        (["--arm", "spark-31b-mtp"], "--arm spark-31b-mtp cannot be compared with tiny-cpu: its target is"),
        (["--arm", "no-such"], "unknown profile 'no-such'"),
        (["--name", "Tuned!"], "Tuned!.yaml is not a valid name; use NAME.yaml"),
        (["--name", "a", "--out", "b.yaml"], "--name a and --out b.yaml name different profiles"),
        (["--category", "poetry"], "'poetry' is not one of a"),
        (["--k", "0,99"], "--k must be a list of whole numbers from 0 to 64"),
    ],
)
def test_a_mistake_is_told_before_anything_is_started(
    fakes: Fakes, tune: Callable[..., int], more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(*more) == 2
    assert said in capsys.readouterr().err
    assert not fakes.started


@pytest.mark.parametrize("more", [["--name", "Tuned!"], ["--name", "a", "--out", "b.yaml"]])
def test_a_dry_run_refuses_what_the_run_would_refuse(
    fakes: Fakes, tune: Callable[..., int], more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for dry in ([], ["--dry-run"]):
        assert tune(*more, *dry) == 2
        said.append(capsys.readouterr().err)
    assert said[0] == said[1]
    assert not fakes.started


def test_somebody_elses_file_is_never_written_over(
    fakes: Fakes, tune: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    file = own_folder() / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("extends: tiny-cpu\nname: mine\n")
    assert tune("--name", "mine") == 2
    assert "mine.yaml already exists, and tune did not write it" in capsys.readouterr().err
    assert file.read_text() == "extends: tiny-cpu\nname: mine\n"


def test_another_profile_can_win_and_is_what_the_file_extends(fakes: Fakes, tune: Callable[..., int]) -> None:
    fakes.speeds = lambda arm: 90.0 if arm.method == "mtp" else 50.0 + arm.k
    assert tune("--arm", "tiny-cpu-mtp", "--set", "serve.max_num_seqs=2") == 0
    loaded = load_profile("tiny-cpu-tuned")
    assert loaded.profile.speculative
    assert loaded.profile.speculative.method == "mtp"
    assert loaded.profile.serve.max_num_seqs == 2
    assert "extends: tiny-cpu-mtp" in loaded.file.read_text()


def test_a_dry_run_starts_nothing(fakes: Fakes, tune: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--dry-run", "--arm", "tiny-cpu-ngram") == 0
    assert "tiny-cpu-ngram  ngram" in capsys.readouterr().out
    assert tune("--dry-run", "--json") == 0
    assert [one["k"] for one in json.loads(capsys.readouterr().out)["arms"]] == [0, 4, 2]
    assert tune("--dry-run", "--concurrency", "4,1") == 0
    assert "with 1, 4 requests at once" in capsys.readouterr().out
    assert not fakes.started
    assert not state_file("tiny-cpu-tuned").exists()


# up


@pytest.fixture
def written(fakes: Fakes, tune: Callable[..., int]) -> None:
    """A tuned profile."""
    assert tune() == 0


def fake_lock(facts: dict[str, str]) -> Lock:
    """What a profile runs on a machine that is not here, by these facts alone."""
    return cast("Lock", SimpleNamespace(facts=lambda: facts))


def remark(*overrides: str, runs: dict[str, str] | Exception = LOCK) -> str:
    loaded = load_profile("tiny-cpu-tuned", overrides=overrides)
    found = tuned_remark(loaded, runs if isinstance(runs, Exception) else fake_lock(runs))
    assert found
    return found


@pytest.mark.usefixtures("written")
def test_up_says_that_it_runs_on_what_was_measured() -> None:
    assert "machine, image, vLLM and models are those that were measured" in remark()
    assert "are those that were measured" in remark("serve.port=9999")
    untuned = load_profile("tiny-cpu")
    assert tuned_remark(untuned, fake_lock(LOCK)) is None


@pytest.mark.usefixtures("written")
def test_up_names_what_is_not_as_it_was_measured(nvidia_smi: FakeNvidiaSmi) -> None:
    facts = {**LOCK, "versions.vllm": "0.33.0"}
    said = remark("speculative.num_speculative_tokens=7", runs=facts)
    assert "vLLM was 0.32.0, and is 0.33.0" in said
    assert "its settings are not those that were measured" in said
    nvidia_smi.lists(card("NVIDIA H200", gib=140, capability="9.0"))
    assert "the GPU was none, and is NVIDIA H200" in remark()


@pytest.mark.usefixtures("written")
def test_what_cannot_be_told_is_not_called_the_same() -> None:
    runs = what_runs(load_profile("tiny-cpu-tuned"), "process")
    assert isinstance(runs, EnvironmentMissing), "the environment is not made"
    assert f"cannot tell whether this is still what was measured: {runs.message}" in remark(runs=runs)


@pytest.mark.usefixtures("written")
def test_the_line_is_part_of_up(machine: FakeMachine, capsys: pytest.CaptureFixture[str]) -> None:
    assert up(name="tiny-cpu-tuned") == 0
    assert machine.running.keys() == {"tiny-cpu-tuned"}
    loaded = load_profile("tiny-cpu-tuned", overrides=PYTHON[1:])
    remark = tuned_remark(loaded, what_runs(loaded, "process"))
    assert remark
    assert remark in capsys.readouterr().err


@pytest.mark.usefixtures("written")
def test_a_profile_that_extends_a_tuned_one_is_not_called_tuned() -> None:
    (own_folder() / "mine.yaml").write_text("extends: tiny-cpu-tuned\nname: mine\n")
    assert load_profile("mine").profile.tuned is None
