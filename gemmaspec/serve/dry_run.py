"""`up --dry-run`: what `up` would do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gemmaspec.check.use_cases.lint import costly
from gemmaspec.core import data
from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.finding import Finding
from gemmaspec.core.patching.choice import Choices
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.engines import uses_image
from gemmaspec.core.profile.foreign_code import code_of
from gemmaspec.core.profile.load import Loaded
from gemmaspec.core.profile.machines import HERE, MACHINES
from gemmaspec.run.kept.attention import capability_here, graphs_ahead
from gemmaspec.run.kept.lockfile import release_of
from gemmaspec.run.kept.stacks import Started
from gemmaspec.run.machine import nvidia
from gemmaspec.run.stack.speed import speed_choice, untried
from gemmaspec.serve import lock
from gemmaspec.serve.decide import Start, UpRequest, decide
from gemmaspec.serve.observe import load_request, observe
from gemmaspec.serve.start_costs import Ahead, ahead, no_gpu


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What `up` would do, for people."""

    start: Start
    ahead: Ahead | None
    """Image, runtime and models that are not on this machine, and how long it takes; None if it runs already."""
    graphs: tuple[str, ...]
    """The CUDA graphs that it would lack, and what brings them back."""
    speed: Choices
    """Patches for speed that it would try; the launcher leaves out those that do not fit exactly."""
    untried: tuple[str, ...] = ()
    """Patches for speed that fit, and were measured on other GPUs alone."""
    no_gpu: tuple[str, ...] = ()
    """That the profile needs a GPU, where none is here."""
    memory: tuple[str, ...] = ()
    """Why it would not fit into the GPUs that are here, as far as that can be computed without a network."""
    costs: tuple[Finding, ...] = ()
    """What lint knows of its speed and memory."""
    instead_of: Started | None = None
    """The server of another profile that would be stopped for it (`--instead-of`)."""
    code: tuple[str, ...] = ()
    """Whose code the server runs besides vLLM's own command."""


def _too_little(loaded: Loaded) -> Iterator[str]:
    """Yield why a profile does not fit on this machine; nothing without a GPU, or where nobody can compute it."""
    from gemmaspec.check.use_cases.server_facts import plan_on, release_for

    with contextlib.suppress(GemmaspecError):
        if MACHINES[loaded.profile.machine].gpus and nvidia.gpus():
            plan = plan_on(loaded.profile, release_for(loaded, None)[0], machine=HERE, shapes=True)
            yield from plan.problems()


def dry_run(request: UpRequest, note: Callable[[str], None], loaded: Loaded | None = None) -> DryRun:
    """Return what `up` would do. Changes nothing; asks the engine, and for the sizes of what is missing.

    Raises DifferencesFound where `up` would refuse what its lock does not pin.
    """
    observed, _ = observe(request, load_request(request, loaded), note, names_code=False)  # a dry run lists all code
    start, profile = decide(request, observed), observed.loaded.profile
    shelf = Shelf(data.patch_folders())
    if start.locked_runtime and not start.runtime:  # one that is still to be built gets what the lock pins
        lock.check_runtime(observed.loaded, start.locked_runtime, start.server)
    elsewhere = bool(start.server.nodes) or bool(observed.remote)
    capability = None if elsewhere else capability_here(profile)
    # a server that runs already has its memory
    if elsewhere or start.joins:
        memory = []
    else:
        memory = list(_too_little(observed.loaded))
    before = None if start.joins else ahead(start)
    code = code_of(profile, container=uses_image(start.engine))
    return DryRun(
        start=start,
        ahead=before,
        graphs=graphs_ahead(profile, elsewhere=bool(start.server.nodes)),
        speed=speed_choice(profile, shelf, capability=capability),
        untried=untried(profile, shelf),
        no_gpu=tuple(no_gpu(start)),
        memory=tuple(memory),
        costs=costly(observed.loaded, release=release_of(observed.loaded)),
        code=tuple(code),
    )
