"""What a bench would measure: its cells in order, and the servers that it would start for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from gemmaspec.core.errors import UsageError
from gemmaspec.measure.bench.cells import Arm, Task, arms_of, cells_of, order
from gemmaspec.measure.bench.settings import BenchRequest
from gemmaspec.measure.servers import dummy
from gemmaspec.measure.servers.bench import decided, patch_arms
from gemmaspec.measure.servers.bench_cells import prompt_set
from gemmaspec.run.kept.asked_profile import load_for, need_one_server


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """What would be measured."""

    profile: str
    tasks: tuple[Task, ...]
    """In order."""

    @property
    def arms(self) -> tuple[Arm, ...]:
        """What a server is started for, each once."""
        return tuple(dict.fromkeys(task.arm for task in self.tasks))

    @property
    def starts(self) -> int:
        """How many servers are started: one wherever the next cell is of another configuration than the last."""
        return 1 + sum(before.arm != after.arm for before, after in itertools.pairwise(self.tasks))


def planned(request: BenchRequest, note: Callable[[str], None]) -> BenchPlan:
    """Return what a bench would measure. Starts and writes nothing.

    Raises UsageError for what the profile does not run, and for a run that starts no server or goes on with another.
    """
    if request.running or request.url or request.resume:
        raise UsageError("--dry-run says which servers would be started, and --running, --url and --resume name one")
    loaded = load_for("bench", request.profile, overrides=request.overrides)
    need_one_server(request.profile, loaded, "bench", url=True)
    if request.dummy_weights:
        prompts = dummy.PROMPTS
    else:
        prompts = prompt_set(request.prompts, note)
    settings = decided(request, loaded, prompts)
    arms = patch_arms(arms_of(loaded.profile, settings.ks), settings.patches, request.profile, request.overrides)
    tasks = order(arms, cells_of(settings.concurrencies, settings.contexts), rounds=settings.rounds)
    return BenchPlan(profile=settings.profile, tasks=tuple(tasks))
