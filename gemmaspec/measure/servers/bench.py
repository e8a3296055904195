"""`bench`: measure a profile with and without speculation, on one machine in one run.

How long the rest of a run takes: its cells, and the starts of its servers.

Patches for speed as arms of `bench`: the profile's own, none, some, or all but one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gemmaspec import __version__
from gemmaspec.core import data
from gemmaspec.core.errors import GemmaspecError, Interrupted, PatchConflict, StartFailed, TimedOut, UsageError
from gemmaspec.core.files import write_whole
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile import limits
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.resolved.resolve import resolved_of
from gemmaspec.core.rows import RESULT
from gemmaspec.core.signed import is_own, signature
from gemmaspec.measure.bench import result, rows
from gemmaspec.measure.bench.cells import Arm, Task, arms_of, cells_of, order
from gemmaspec.measure.bench.page import page
from gemmaspec.measure.bench.prompts import PromptSet, chosen
from gemmaspec.measure.bench.settings import BenchRequest, acceptance_only, in_words, taken_up
from gemmaspec.measure.cell import Asking
from gemmaspec.measure.servers import counted_ids, dummy
from gemmaspec.measure.servers.bench_cells import Measuring, prompt_set
from gemmaspec.measure.servers.bench_server import Servers
from gemmaspec.measure.stream import Broken
from gemmaspec.run.kept import measurements
from gemmaspec.run.kept.asked_profile import load_for, need_one_server
from gemmaspec.run.kept.stack_lock import StartProgress
from gemmaspec.run.kept.stacks import warn_of_neighbours
from gemmaspec.run.stack.speed import speed_choice

OWN: Final = "speed"
"""The patches that the profile takes."""
NONE: Final = "none"
RELEASED: Final = "released"
"""vLLM as released: no patches for speed, and its own choice of every kernel."""
_KERNELS: Final = ("serve.attention_backend", "serve.linear_backend", "serve.moe_backend")
_HEADS: Final = ("speculative.attention_backend", "speculative.moe_backend")
WITHOUT: Final = "without "


def patch_arms(arms: Sequence[Arm], sets: Sequence[str], profile: str, overrides: Sequence[str]) -> tuple[Arm, ...]:
    """Return each arm with each set of patches for speed; arms that would run the same are measured once.

    A set is `speed`, `none`, `released`, ids joined by +, or `without ID`. Raises UsageError for an id that the
    profile does not take, and where all sets are the same; PatchError for an unknown id or a patch of a defect.
    """
    if not sets:
        return tuple(arms)
    shelf = Shelf(data.patch_folders())
    kept: dict[tuple[str, int, frozenset[str], bool], Arm] = {}
    for arm in arms:
        plain = load_profile(profile, overrides=(*overrides, *arm.overrides), no_spec=arm.alone).profile
        for wanted in sets:
            own = replace(arm, patches=wanted, overrides=(*arm.overrides, *_override(wanted, plain, shelf, arm)))
            run = load_profile(profile, overrides=(*overrides, *own.overrides), no_spec=arm.alone).profile
            kept.setdefault((arm.method, arm.k, frozenset(speed_choice(run, shelf).taken), wanted == RELEASED), own)
    if len(kept) == len(arms) and len(sets) > 1:
        raise UsageError(_all_same(profile, overrides, shelf), hint=f"gemmaspec up {profile} --dry-run")
    return tuple(kept.values())


def _override(wanted: str, profile: Profile, shelf: Shelf, arm: Arm) -> tuple[str, ...]:
    if wanted == OWN:
        return ()
    if wanted == NONE:
        return ("patches.speed=off",)
    if wanted == RELEASED:
        named = [*_KERNELS, *(() if arm.alone else _HEADS)]
        return ("patches.speed=off", *(f"{key}=" for key in named))
    if not wanted.startswith(WITHOUT):
        return (f"patches.speed=[{', '.join(wanted.split('+'))}]",)
    left = wanted.removeprefix(WITHOUT)
    taken = list(speed_choice(profile, shelf).taken)
    if left not in taken and not arm.alone:
        takes = ", ".join(taken) or "none"
        raise UsageError(f"without {left}: {profile.name} does not take it; the patches for speed here are {takes}")
    rest = [patch for patch in taken if patch != left and left not in shelf[patch].text.needs]
    if rest:
        return (f"patches.speed=[{', '.join(rest)}]",)
    return ("patches.speed=off",)


def _all_same(profile: str, overrides: Sequence[str], shelf: Shelf) -> str:
    choice = speed_choice(load_profile(profile, overrides=overrides).profile, shelf)
    why = "; ".join(f"{name}: {text}" for name, text in choice.left_out.items()) or "there are none"
    return (
        f"{profile} takes no patch for speed that these sets could differ in ({why}); name one: --speed-patches ID,none"
    )


class TimeLeft:
    """Learns from the cells and starts of this run."""

    def __init__(self, *, starts: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """`starts` says whether the run starts a server for each arm."""
        self._starts, self._clock = starts, clock
        self._running: Arm | None = None
        self._cells: list[float] = []
        self._started: list[float] = []

    @contextlib.contextmanager
    def starting(self, arm: Arm) -> Iterator[None]:
        """Time the start of an arm, unless its server already runs."""
        fresh, began = arm != self._running, self._clock()
        yield
        self._running = arm
        if fresh:
            self._started.append(self._clock() - began)

    def measured(self, seconds: float) -> None:
        """Note how long a cell took."""
        self._cells.append(seconds)

    def said(self, arms: Sequence[Arm]) -> str:
        """Return what is left after the first of `arms`, the arms of the cells in their order; "" for nothing."""
        cells = len(arms) - 1
        if not cells:
            return ""
        if self._starts:
            starts = sum(before != other for before, other in itertools.pairwise(arms))
        else:
            starts = 0
        minutes = cells * statistics.fmean(self._cells) / 60
        if starts and self._started:
            minutes += starts * statistics.fmean(self._started) / 60
        more = ""
        if starts:
            if starts == 1:
                more = " and 1 server start"
            else:
                more = f" and {starts} server starts"
        if minutes >= 1:
            took = f"about {minutes:.0f} min"
        else:
            took = "under a minute"
        return f"; {cells} left{more}, {took}"


REPORT: Final = "report.html"
CONCURRENCIES: Final = (1, 4, 8)


def bench(request: BenchRequest, progress: StartProgress) -> dict[str, Any]:
    """Measure and return the result. After every cell, `out` holds all of it.

    Raises Interrupted on Ctrl-C, GemmaspecError when a server dies; what was measured is kept and can be resumed.
    """
    if request.resume:
        request = resumed(request)
    loaded = load_for("bench", request.profile, overrides=request.overrides)
    if not request.url:
        need_one_server(request.profile, loaded, "bench", url=True)
    if request.acceptance:
        request = acceptance_only(request, loaded.profile)
    if request.dummy_weights and (request.running or request.url):
        raise UsageError("--dummy-weights starts servers, and --running and --url start none")
    if request.save_ids and request.dummy_weights:
        raise UsageError("--save-ids counts what answers say, and those of --dummy-weights say nothing")
    if request.dummy_weights:
        prompts = dummy.PROMPTS
    else:
        prompts = prompt_set(request.prompts, progress.note)
    return _BenchRun(request, decided(request, loaded, prompts), loaded, prompts, progress).run()


def resumed(request: BenchRequest) -> BenchRequest:
    """Return the request with the settings of the run in its folder, except for those that the caller states.

    A result that this user's gemmaspec did not write may set only what measures. Raises UsageError for a folder
    without a result of bench, and for one from elsewhere that would do more, with the command that states it.
    """
    document = result.read_result(request.out)
    own = is_own(document["settings"], document.get("signature"))
    return taken_up(request, document["settings"], own=own)


def decided(request: BenchRequest, loaded: Loaded, prompts: PromptSet) -> BenchRequest:
    """Return the request with what the profile and the prompts decide of it."""
    # the profile does not limit a server behind an address, so the user's own numbers stand
    asked = () if request.url else request.concurrencies
    loads = limits.concurrencies(loaded.profile, asked, usual=CONCURRENCIES, why=limits.QUEUED)
    arms = arms_of(loaded.profile, request.ks)
    return dataclasses.replace(
        request,
        profile=loaded.profile.name,
        ks=tuple(arm.k for arm in arms),
        concurrencies=request.concurrencies or loads,
        ignore_eos=request.ignore_eos or request.dummy_weights,
        prompts=prompts.name,
        prompts_sha256=prompts.sha256,
    )


class _BenchRun:
    """One run, with what it has measured so far."""

    def __init__(
        self, request: BenchRequest, settings: BenchRequest, loaded: Loaded, prompts: PromptSet, progress: StartProgress
    ) -> None:
        self._request, self._settings, self._loaded, self._progress = request, settings, loaded, progress
        self._compile = resolved_of(loaded.profile).compile
        self._servers = Servers(
            request, loaded, progress, running=request.running, url=request.url, dummy=request.dummy_weights
        )
        those = chosen(prompts, categories=settings.categories, each=settings.each)
        self._prompts = those
        self._measuring = Measuring(settings, those, progress, exactly=settings.dummy_weights)
        self._cells: list[dict[str, Any]] = []
        self._began = time.time()
        self._left = TimeLeft(starts=not (request.running or request.url))
        self._vocabulary = 0
        """Ids of the draft's head, for --save-ids; a draft without a list is refused before anything starts."""
        if request.save_ids:
            self._vocabulary = counted_ids.vocabulary_of(loaded.profile)
        self._said: Sequence[counted_ids.Said] = ()
        self._failed: dict[str, str] = {}
        """Arms whose server does not start, and why."""

    def run(self) -> dict[str, Any]:
        """Measure the remaining cells."""
        if self._request.resume:
            self._take_up()
        elif (self._request.out / RESULT).exists():
            raise UsageError(
                f"{self._request.out} already contains a result",
                hint=f"gemmaspec bench {self._request.profile} --resume …",
            )
        tasks = self._tasks()
        if not self._request.url:
            warn_of_neighbours(self._loaded.profile.name, self._progress.note)
        done = {cell["key"] for cell in self._cells}
        todo = [task for task in tasks if task.key not in done]
        try:
            for place, task in enumerate(todo, 1):
                if str(task.arm) not in self._failed:
                    number = len(tasks) - len(todo) + place
                    self._measure(task, f"[{number}/{len(tasks)}]", todo[place:])
        except KeyboardInterrupt:
            raise self._left_off(Interrupted("interrupted")) from None
        except GemmaspecError as error:
            raise self._left_off(error) from None
        finally:
            self._servers.close()
        document = self._write(complete=not self._failed)
        if self._request.save_measured:
            self._progress.note(f"saved for predict in {measurements.save(self._loaded, document['rows'])}")
        return document

    def _tasks(self) -> tuple[Task, ...]:
        wanted = arms_of(self._loaded.profile, self._settings.ks)
        wanted = patch_arms(wanted, self._settings.patches, self._request.profile, self._request.overrides)
        arms = self._servers.arms(wanted)
        cells = cells_of(self._settings.concurrencies, self._settings.contexts)
        return order(arms, cells, rounds=self._settings.rounds)

    def _measure(self, task: Task, number: str, rest: Sequence[Task]) -> None:
        asking = self._started(task.arm)
        if asking is None:
            return
        self._count_ids(asking)
        began = time.monotonic()
        try:
            cell = self._measuring.cell(asking, task, limit=self._servers.limit)
            ran = self._servers.ran(task.arm)
            self._cells.append({**cell, **ran, "sampling": self._measuring.sampling(ran)})
        except UsageError as error:
            if not self._settings.dummy_weights:
                raise
            self._progress.note(f"{number} {task.arm}, {task.cell} is skipped: {error.message}")
            return
        except Broken as error:
            raise self._servers.died(f"{task.arm}, {task.cell}", error) from None
        self._left.measured(time.monotonic() - began)
        self._write(complete=False)
        todo = [task.arm, *(task.arm for task in rest if str(task.arm) not in self._failed)]
        self._progress.note(f"{number} {_line(task, self._cells[-1])}{self._left.said(todo)}")

    def _count_ids(self, asking: Asking) -> None:
        """Ask every prompt once for its ids, on the first server: a draft does not change what the target says."""
        if self._request.save_ids is None or self._said:
            return
        self._said = counted_ids.asked_for_ids(asking, self._prompts, at_once=max(self._settings.concurrencies))
        file, name = self._request.save_ids, self._loaded.profile.name
        told = counted_ids.saved(file, self._said, profile=name, vocabulary=self._vocabulary)
        self._progress.note(f"{file} has {told}")

    def _started(self, arm: Arm) -> Asking | None:
        """Return the arm's server; None if it does not start, which is a result as long as another arm starts."""
        try:
            return self._asking(arm)
        except (StartFailed, TimedOut, PatchConflict) as error:
            others = [other for other in self._servers.all_arms if other != arm]
            if all(str(other) in self._failed for other in others):
                raise
            self._failed[str(arm)] = " ".join(error.message.split())  # `up` says on lines of their own what it stopped
            self._progress.note(f"{arm} does not start and is skipped: {error.message}")
            return None

    def _asking(self, arm: Arm) -> Asking:
        with self._left.starting(arm):
            server, key = self._servers.serving(arm)
        return self._measuring.asking(server, key, self._loaded.profile)

    def _take_up(self) -> None:
        """Continue from the result in `out`."""
        document = result.read_result(self._request.out)
        if other := self._settings.differs(document["settings"]):
            raise UsageError(
                f"{self._request.out} was started {in_words(other, document['settings'].get(other))}",
                hint=f"gemmaspec bench --resume {self._request.out}    # with its own options; or another --out",
            )
        self._cells = list(document["cells"])
        self._servers.expect(document["provenance"].get("arms") or {})
        self._progress.note(f"{len(self._cells)} cells are already measured")

    def _left_off(self, error: GemmaspecError) -> GemmaspecError:
        """Return the same error, with what was kept and how to continue."""
        if self._cells:
            self._write(complete=False)
            number = len(self._cells)
            kept = f"{number} measured cell{'s are' if number != 1 else ' is'} kept in {self._request.out / RESULT}"
            hint = error.hint or f"gemmaspec bench --resume {self._request.out}"
            return error.amended(f"{error.message}; {kept}", hint=hint)
        return error

    def _write(self, *, complete: bool) -> dict[str, Any]:
        document = self._document(complete=complete)
        write_whole(self._request.out / RESULT, result.text_of(document), mode=0o600)
        write_whole(self._request.out / REPORT, page(document), mode=0o600)
        return document

    def _document(self, *, complete: bool) -> dict[str, Any]:
        facts = self._servers.common
        common = {"compile": self._compile, **facts}
        settings = self._settings.settings()
        head = {
            "schema": result.SCHEMA,
            "kind": result.KIND,
            "complete": complete,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began)),
            "gemmaspec": __version__,
            "profile": self._loaded.profile.name,
        }
        return {
            **head,
            "settings": settings,
            "signature": signature(settings),
            "provenance": {**self._servers.machine, "arms": self._servers.facts},
            "failed": self._failed,
            "rows": rows.rows_of(self._cells, common=common),
            "cells": self._cells,
        }


def _line(task: Task, cell: Mapping[str, Any]) -> str:
    if task.arm.k:
        accepted = f", E {cell['acceptance_length']:.2f}"
    else:
        accepted = ""
    unsteady = ""
    if not cell["reference"]["steady"]:
        moved = cell["reference"]["moved"]
        unsteady = f", while the reference step took {abs(moved):.0%} {'longer' if moved > 0 else 'less'}"
    return (
        f"{task.arm}, {task.cell}: {cell['tokens_per_second']:,.1f} tok/s, "
        f"{cell['step_ms']:.1f} ms/step{accepted}{unsteady}"
    )
