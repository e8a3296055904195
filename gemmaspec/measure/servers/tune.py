"""`tune`: start arms as `up` does, measure them as `bench` does, and write the best as a profile of the user's."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gemmaspec import __version__
from gemmaspec.core import data
from gemmaspec.core.errors import DifferencesFound, GemmaspecError, TimedOut, UsageError
from gemmaspec.core.files import read_regular, state_dir, write_whole
from gemmaspec.core.patching.evidence import OWN_LAUNCHES
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.find import profile_names
from gemmaspec.measure.bench.cells import Arm, Cell, Task
from gemmaspec.measure.bench.prompts import PromptSet, chosen
from gemmaspec.measure.bench.result import text_of
from gemmaspec.measure.cell import Asking
from gemmaspec.measure.servers import tuned
from gemmaspec.measure.servers.bench_cells import Measuring, prompt_set
from gemmaspec.measure.servers.bench_server import Servers
from gemmaspec.measure.servers.tune_field import Compared, launches_of
from gemmaspec.measure.stream import Broken
from gemmaspec.measure.tune import stored
from gemmaspec.measure.tune.arms import with_launches
from gemmaspec.measure.tune.choose import TuneChoice, choose
from gemmaspec.measure.tune.next_arm import Done, Visit, minutes, next_visit, rule_out, rungs_of
from gemmaspec.measure.tune.trials import Tried, TriedCell, TuneRequest
from gemmaspec.run.kept.stack_lock import StartProgress
from gemmaspec.run.kept.stacks import warn_of_neighbours
from gemmaspec.run.stack.speed import speed_choice
from gemmaspec.serve.spot import SECONDS, MeasureRequest, measure_first

_OF_BUDGET: Final = 0.05
"""Of a tuning's time, what measuring one patch for speed may take."""
_LEAST_S: Final = 60
"""Seconds that it may take at least."""


@dataclass(frozen=True, kw_only=True)
class TuneOutcome:
    """What a tuning came to."""

    document: Mapping[str, Any]
    choice: TuneChoice | None
    tried: Tried
    compared: Compared
    file: Path | None
    """The profile that was written."""
    ended: str
    """Why nothing more is tried."""
    interrupted: bool

    @property
    def in_profiles(self) -> bool:
        """Whether the written profile is found by its name."""
        return self.file is not None and profile_names().get(self.file.stem) == self.file


def tune(request: TuneRequest, progress: StartProgress) -> TuneOutcome:
    """Try arms until nothing is left that may win, or the budget ends; write the best one as a profile.

    Ctrl-C ends it with the best of what was measured. Raises UsageError where the budget is too small for one arm, and
    what `up` raises where the target does not even start without speculation; what was measured is kept for --continue.
    """
    return _TuneRun(request, progress).run()


def plan(request: TuneRequest) -> tuple[Compared, TuneRequest]:
    """Return what a tuning would compare; starts nothing. Raises UsageError where its answer could not be written."""
    compared = Compared.of(request)
    tuned.destination(compared.base, name=request.name, out=request.out)
    return compared, _decided(request, compared, prompt_set(request.prompts, lambda _: None))


def state_file(name: str) -> Path:
    """Return where what was tried is kept, for --continue."""
    return state_dir() / "tune" / f"{name}.json"


def _decided(request: TuneRequest, compared: Compared, prompts: PromptSet) -> TuneRequest:
    name, loads = compared.base.profile.name, compared.loads
    return replace(request, profile=name, loads=loads, prompts=prompts.name, prompts_sha256=prompts.sha256)


def _patches_of(request: TuneRequest) -> MeasureRequest:
    """Return what the first stage measures, in a part of the budget."""
    seconds = max(_LEAST_S, min(SECONDS, int(_OF_BUDGET * request.budget_s)))
    return MeasureRequest(profile=request.profile, overrides=request.overrides, engine=request.engine, seconds=seconds)


class _TuneRun:
    """One tuning, with what it has tried so far."""

    def __init__(self, request: TuneRequest, progress: StartProgress) -> None:
        self._request, self._progress = request, progress
        if not request.resume:  # before anything asks which patches are taken
            measure_first(_patches_of(request), progress.note)
        self._compared = Compared.of(request)
        self._target = tuned.destination(self._compared.base, name=request.name, out=request.out)
        prompts = prompt_set(request.prompts, progress.note)
        self._settings = _decided(request, self._compared, prompts)
        sets = [chosen(prompts, categories=request.categories, each=each) for each in self._eaches(prompts)]
        self._measuring = [Measuring(request, prompts, progress) for prompts in sets]
        self._tried = Tried(loads=self._compared.loads, prompts=tuple(map(len, sets)))
        self._servers: dict[str, Servers] = {}
        self._running: Arm | None = None
        self._began, self._clock = time.time(), time.monotonic()
        self._spent_before = 0.0
        self._provenance: dict[str, Any] = {"machine": {}, "arms": {}}
        self._file = state_file(self._target.stem)
        self._stop = ""
        """Why nothing more can be compared."""

    def run(self) -> TuneOutcome:
        """Try what is not tried yet."""
        self._take_up()
        interrupted, ended = False, ""
        try:
            for name in self._compared.loaded:
                self._server_of(name).arms(())
            warn_of_neighbours(self._compared.base.profile.name, self._progress.note)
            self._measure_launches()
            ended = self._try_all()
        except KeyboardInterrupt:
            interrupted, ended = True, "interrupted"
        finally:
            with contextlib.suppress(KeyboardInterrupt):
                self._close()
        return self._outcome(ended, interrupted=interrupted)

    def _measure_launches(self) -> None:
        """Measure how this GPU launches kernels best, once; what was found is tried on the fastest arm."""
        launches_json = self._provenance.get("launches")
        if launches_json is None:
            try:
                launches = launches_of(self._compared, self._request, self._progress.note)
            except GemmaspecError as error:
                self._progress.note(f"launch parameters are not tried: {error.message.splitlines()[0]}")
                return
            launches_json = (launches.variable if launches else None) or ""
            self._provenance["launches"] = launches_json
        if OWN_LAUNCHES.fullmatch(str(launches_json)):
            shelf, field = Shelf(data.patch_folders()), self._compared.field
            for name, loaded in self._compared.loaded.items():
                taken = speed_choice(loaded.profile, shelf).taken
                field = with_launches(field, name, list(taken), str(launches_json))
            self._compared = replace(self._compared, field=field)

    def _eaches(self, prompts: PromptSet) -> tuple[int, ...]:
        counts = Counter(prompt.category for prompt in prompts.prompts)
        return rungs_of(self._request.each or max(counts.values()), self._request.rounds)

    def _left_s(self) -> float:
        return self._request.budget_s - (time.monotonic() - self._clock)

    def _try_all(self) -> str:
        """Visit arms until the plan is done, and return why it is."""
        while True:
            self._tried = rule_out(self._tried, self._compared.field)
            self._write(complete=False)
            step = next_visit(self._tried, self._compared.field, running=self._running, left_s=self._left_s())
            if isinstance(step, Done):
                self._write(complete=step.complete)
                return step.why
            if not self._visit(step):
                return self._stop or f"the budget of {minutes(self._request.budget_s)} is spent"

    def _visit(self, visit: Visit) -> bool:
        """Start an arm and measure it; False where the budget ended meanwhile."""
        self._progress.note(self._heading(visit))
        asking = self._started(visit.arm)
        if asking is None:
            return self._left_s() > 0 and not self._stop
        for load in visit.loads:
            if self._left_s() <= 0:
                return False
            try:
                self._measure(visit, load, asking)
            except Broken as error:
                self._failed(visit.arm, self._server_of(visit.arm.profile).died(f"{load} at once", error))
                return not self._stop
        return True

    def _heading(self, visit: Visit) -> str:
        if visit.estimate is None:
            takes = ""
        else:
            takes = f", about {minutes(visit.estimate)}"
        if visit.left:
            left = f"{visit.left} more in this round, "
        else:
            left = ""
        budget = f"{minutes(max(self._left_s(), 0))} of {minutes(self._request.budget_s)} left"
        return f"round {visit.rung + 1}: {visit.arm}{takes}; {left}{budget}"

    def _started(self, arm: Arm) -> Asking | None:
        """Return the arm's server; None where it does not start, which the report says."""
        servers = self._server_of(arm.profile)
        if self._running and self._running.profile != arm.profile:
            self._close()
        servers.within(max(1.0, min(self._request.timeout_s, self._left_s())))
        fresh, began = self._running != arm, time.monotonic()
        try:
            server, key = servers.serving(arm)
        except DifferencesFound:
            raise
        except (GemmaspecError, Broken) as error:
            self._refuse(arm, error)
            return None
        self._running = arm
        if fresh:
            took = (*self._tried.starts.get(arm.key, ()), round(time.monotonic() - began, 1))
            self._tried = replace(self._tried, starts={**self._tried.starts, arm.key: took})
        self._provenance["machine"] = servers.machine
        self._provenance["arms"].setdefault(arm.profile, {}).update(servers.facts)
        return self._measuring[0].asking(server, key, self._compared.loaded[arm.profile].profile)

    def _refuse(self, arm: Arm, error: GemmaspecError | Broken) -> None:
        """Note an arm that did not start. Raises where nothing can be compared without it, or time alone was short."""
        if isinstance(error, GemmaspecError):
            failure = error
        else:
            failure = GemmaspecError(error.message)
        late = isinstance(failure, TimedOut) and self._left_s() <= 1
        if arm.alone and late:
            raise self._too_small(f"the target alone was not ready in {minutes(self._request.budget_s)}")
        if late:  # its own fault is not shown by that: a resumed run tries it again
            self._progress.note(f"{arm} was not ready before the budget ended")
            self._close()
            return
        self._failed(arm, failure)

    def _failed(self, arm: Arm, error: GemmaspecError) -> None:
        """Leave an arm out. Without the target alone nothing more is compared; raises where nothing was yet."""
        problem = error.message.splitlines()[0]
        self._close()
        if not arm.alone:
            self._tried = replace(self._tried, failed={**self._tried.failed, arm.key: problem})
            self._progress.note(f"{arm} is left out: {problem}")
            return
        self._stop = f"the target failed without speculation, the baseline of every comparison: {problem}"
        if self._tried.rates(arm, 0) is None:
            raise error.amended(self._stop)

    def _measure(self, visit: Visit, load: int, asking: Asking) -> None:
        task = Task(arm=visit.arm, cell=Cell(concurrency=load), round=visit.rung + 1)
        began = time.monotonic()
        limit = self._server_of(visit.arm.profile).limit
        figures = self._measuring[visit.rung].cell(asking, task, limit=limit)
        took = round(time.monotonic() - began, 1)
        cell = TriedCell(
            arm=visit.arm.key,
            rung=visit.rung,
            load=load,
            tokens_per_second=figures["tokens_per_second"],
            acceptance=tuple(figures["acceptance"]),
            context=round(figures["prompt_tokens"]),
            step_ms=figures["step_ms"],
            requests=figures["requests"],
            seconds=took,
            steady=figures["reference"]["steady"],
        )
        self._tried = replace(self._tried, cells=(*self._tried.cells, cell))
        self._write(complete=False)
        self._progress.note(f"  {load} at once: {cell.tokens_per_second:,.1f} tok/s{self._times(visit, cell)}")

    def _times(self, visit: Visit, cell: TriedCell) -> str:
        base = self._tried.rate(self._compared.field.arms[0], visit.rung, cell.load)
        if cell.steady:
            moved = ""
        else:
            moved = ", while the machine's own speed moved by more than 3 %"
        return (f", {cell.tokens_per_second / base:.2f} times" if base and not visit.arm.alone else "") + moved

    def _server_of(self, profile: str) -> Servers:
        """Return the servers of one profile; at most one of all runs."""
        if profile not in self._servers:
            request = replace(self._request, profile=self._compared.typed[profile])
            servers = Servers(request, self._compared.loaded[profile], self._progress)
            servers.expect(self._provenance["arms"].get(profile) or {})
            self._servers[profile] = servers
        return self._servers[profile]

    def _close(self) -> None:
        self._running = None
        for servers in self._servers.values():
            servers.close()

    def _too_small(self, why: str) -> UsageError:
        if self._tried.cells:
            kept = f"; {self._tried.kept}"
        else:
            kept = ""
        return UsageError(
            f"--budget is too small for one start: {why}{kept}",
            hint=f"the same command with --continue and a budget of {minutes(self._request.budget_s * 3)} or more",
        )

    def _take_up(self) -> None:
        """Go on from what was tried, where that is asked for; else put it aside."""
        content = read_regular(self._file, limit=stored.MAX_BYTES)
        if not self._request.resume:
            if content is not None:
                self._file.replace(self._file.with_suffix(".before.json"))
            return
        if content is None:
            raise UsageError(
                f"there is nothing to resume: {self._file} does not exist",
                hint=f"gemmaspec tune {self._request.profile}",
            )
        document, tried = stored.parse(content.decode(errors="replace"), file=str(self._file))
        if other := self._settings.differs(document["settings"]):
            raise UsageError(
                f"the tuning in {self._file} was started with another {other}: {document['settings'].get(other)!r}",
                hint="use the same options with --continue, or start again without it",
            )
        self._tried = replace(tried, loads=self._compared.loads, prompts=self._tried.prompts)
        self._provenance = {"machine": {}, "arms": {}, **document["provenance"]}
        self._spent_before = float(document["spent_s"])
        self._progress.note(f"resuming: {tried.kept}")

    def _outcome(self, ended: str, *, interrupted: bool) -> TuneOutcome:
        choice = choose(self._tried, self._compared.field)
        document = self._write(complete=self._complete)
        file = None
        if choice is None and not interrupted:
            raise self._too_small(ended)
        if choice:
            file = tuned.write(
                self._target,
                choice,
                loaded=self._compared.loaded[choice.arm.profile],
                overrides=self._request.overrides,
                document=document,
                note=self._progress.note,
            )
        return TuneOutcome(
            document={**document, "file": str(file) if file else None, "ended": ended},
            choice=choice,
            tried=self._tried,
            compared=self._compared,
            file=file,
            ended=ended,
            interrupted=interrupted,
        )

    @property
    def _complete(self) -> bool:
        step = next_visit(self._tried, self._compared.field, running=None, left_s=float("inf"))
        return isinstance(step, Done) and step.complete

    def _write(self, *, complete: bool) -> dict[str, Any]:
        head = {
            "kind": stored.KIND,
            "schema": stored.SCHEMA,
            "complete": complete,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began)),
            "gemmaspec": __version__,
            "profile": self._compared.base.profile.name,
        }
        spent_s = self._spent_before + time.monotonic() - self._clock
        choice = choose(self._tried, self._compared.field)
        document = {
            **head,
            "settings": self._settings.settings(),
            "spent_s": round(spent_s, 1),
            "provenance": self._provenance,
            **stored.tried_json(self._tried, self._compared.field),
            "choice": stored.choice_json(choice),
        }
        write_whole(self._file, text_of(document), mode=0o600)
        return document
