"""`up` without a name: which profile to take on this machine, and what to expect of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gemmaspec.check.here.published import published
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.machines import HERE, MACHINES, machine_of
from gemmaspec.core.profile.takeover import TOKENS
from gemmaspec.run.machine import nvidia

if TYPE_CHECKING:
    from gemmaspec.run.machine.nvidia import Gpu

_SPARK: Final = "dgx-spark"
FIRST: Final = "spark-31b-mtp"
"""The shipped profile to take first, which the documentation names too."""
_ON: Final = {_SPARK: (FIRST, "spark-26b-a4b-mtp"), None: ("nvidia-31b-mtp", "nvidia-26b-a4b-mtp")}
"""Machine → the profiles to offer, best first; None for any other NVIDIA GPU."""
_BASES: Final = {
    "own": "from what bench measured here",
    "shipped": "from cells that were measured on a similar machine",
    "roofline": "from bytes over bandwidth, not from a measurement",
    "measured": "from measured cells",
}
_TOY: Final = "tiny-cpu"


@dataclass(frozen=True, kw_only=True)
class ProfileOffer:
    """The profile to take."""

    profile: str
    lines: tuple[str, ...]
    """What was found, and what to expect."""


def offer() -> ProfileOffer:
    """Look at the machine and return the profile to take. Raises EnvironmentMissing if nvidia-smi does not answer."""
    gpus = nvidia.gpus()
    if not gpus:
        return _toy("no NVIDIA GPU was found (nvidia-smi lists none)")
    machine = machine_of(gpus[0].name)
    machine_line = _said(gpus, machine)
    refused = []
    for name in _ON.get(machine, _ON[None]):
        why = _why_not(name, machine)
        if why is None:
            lines = (machine_line, f"{name}: {load_profile(name).profile.summary}", *_expected(name, machine))
            both = _on_a_spark(name) if machine == _SPARK else ()
            return ProfileOffer(profile=name, lines=(*lines, *both))
        refused.append(f"{name} does not fit: {why}")
    return _toy(machine_line, *refused)


def _on_a_spark(name: str) -> Iterator[str]:
    """Yield what is published of the profile that is offered, and the other one: the best answers, or the fastest."""
    yield from published(name, _SPARK)
    for other in _ON[_SPARK]:
        if other == name or _why_not(other, _SPARK):
            continue
        yield f"or the faster one: gemmaspec up {other}    # {load_profile(other).profile.summary}"
        yield from _expected(other, _SPARK)
        yield from published(other, _SPARK)


def today(name: str, draft: str | None) -> Iterator[str]:
    """Yield what a profile that was taken over serves today, and what its target's draft would change."""
    profile = load_profile(name).profile
    machine = profile.machine if MACHINES[profile.machine].memory_gb else None
    if machine:
        yield from (f"today, {line}" for line in _expected(name, machine))
    if draft:
        given = (f"draft.model={draft}", "speculative.method=mtp", f"speculative.num_speculative_tokens={TOKENS}")
        yield f"this target has a draft: {draft}; --with-draft adds it (remove {name} first)"
        if machine:
            yield from (f"with it, {line}" for line in _expected(name, machine, given))
    if not machine:
        yield f"expected: gemmaspec fit {name} --machine h100    # your GPU's name: memory, context and tokens/s"


def _toy(*lines: str) -> ProfileOffer:
    toy = f"{_TOY}: tiny models that ship with it and run on any CPU; they show how gemmaspec works, not how fast"
    return ProfileOffer(profile=_TOY, lines=(*lines, toy))


def _said(gpus: tuple[Gpu, ...], machine: str | None) -> str:
    first = gpus[0]
    size = f", {first.memory / 1e9:.0f} GB" if first.memory else ""  # a GB10 does not say
    several = f"{len(gpus)} x " if len(gpus) > 1 else ""
    return f"found: {several}{first.name}{size}{f' ({machine})' if machine else ''}"


def _why_not(name: str, machine: str | None) -> str | None:
    """Return why a profile does not fit here; None if it does, or if that cannot be computed."""
    from gemmaspec.check.here.fit import FitRequest, fit

    with contextlib.suppress(EnvironmentMissing):
        answer = fit(FitRequest(profile=name, machine=machine or HERE))
        return None if answer.fits else next(iter(answer.problems), "not enough memory")
    return None


def _expected(name: str, machine: str | None, overrides: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the predicted speed, with its interval and its basis."""
    from gemmaspec.check.here.predict import PredictRequest, predict_profile

    spec = load_profile(name, overrides=overrides).profile.speculative
    with contextlib.suppress(GemmaspecError):
        guess = predict_profile(PredictRequest(profile=name, overrides=overrides, machine=machine, concurrencies=(1,)))
        k = spec.k_at(1) if spec else 0
        drafted = next((row for row in guess.rows if row.k == k and row.concurrency == 1), None)
        alone = next((row for row in guess.rows if row.k == 0 and row.concurrency == 1), None)
        if drafted:
            low, high = drafted.interval
            without = f"; {alone.tokens_per_second:.0f} without a draft" if alone and k else ""
            yield (
                f"expected: {drafted.tokens_per_second:.0f} tokens/s for one request, 90 % between {low:.0f} and "
                f"{high:.0f}{without}: predicted {_BASES[guess.basis]}"
            )
            return
    yield f"expected: not known for this GPU; gemmaspec bench {name} measures it"
