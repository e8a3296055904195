"""`up` without a name: which profile to take on this machine, and what to expect of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gemmaspec.check.use_cases.cards import expected, idle, in_order, kinds_of, others_of, taking, up_command, why_not
from gemmaspec.check.use_cases.published import published
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.replica import gpus_each
from gemmaspec.core.profile.takeover import TOKENS
from gemmaspec.run.machine import nvidia

_SPARK: Final = "dgx-spark"
FIRST: Final = "spark-31b-mtp"
"""The shipped profile to take first, which the documentation names too."""
ON_A_SPARK: Final = (FIRST, "spark-26b-a4b-mtp")
"""The profiles to offer on a Spark, best first."""
_TOY: Final = "tiny-cpu"


@dataclass(frozen=True, kw_only=True)
class ProfileOffer:
    """The profile to take."""

    profile: str
    lines: tuple[str, ...]
    """What was found, and what to expect."""
    overrides: tuple[str, ...] = ()
    """What must be set for it on this machine."""

    @property
    def command(self) -> str:
        """The command that starts it."""
        return up_command(self.profile, self.overrides)


def offer() -> ProfileOffer:
    """Look at the machine and return the profile to take. Raises EnvironmentMissing if nvidia-smi does not answer."""
    gpus = nvidia.gpus()
    if not gpus:
        return _toy("no NVIDIA GPU was found (nvidia-smi lists none)")
    cards, *others = kinds_of(gpus)
    machine_line = f"found: {cards}"
    refused = []
    for name in ON_A_SPARK if cards.kind == _SPARK else in_order(cards):
        why = why_not(name, cards.machine)
        if why is None:
            profile = load_profile(name).profile
            summary = f"{name}: {profile.summary}"
            overrides = taking(cards, max(1, gpus_each(profile)))
            chosen = [f"set for it: {override}, because the GPUs here differ" for override in overrides]
            lines = (machine_line, summary, *chosen, *expected(name, cards.machine), *idle(name, cards))
            both = _on_a_spark(name) if cards.kind == _SPARK else ()
            return ProfileOffer(profile=name, lines=(*lines, *both, *others_of(others)), overrides=overrides)
        refused.append(f"{name} does not fit: {why}")
    return _toy(machine_line, *refused)


def _on_a_spark(name: str) -> Iterator[str]:
    """Yield what is published of the profile that is offered, and the other one: the best answers, or the fastest."""
    yield from published(name, _SPARK)
    for other in ON_A_SPARK:
        if other == name or why_not(other, _SPARK):
            continue
        yield f"or the faster one: gemmaspec up {other}    # {load_profile(other).profile.summary}"
        yield from expected(other, _SPARK)
        yield from published(other, _SPARK)


def today(name: str, draft: str | None) -> Iterator[str]:
    """Yield what a profile that was taken over serves today, and what its target's draft would change."""
    profile = load_profile(name).profile
    if MACHINES[profile.machine].memory_gb:
        machine = profile.machine
    else:
        machine = None
    if machine:
        yield from (f"today, {line}" for line in expected(name, machine))
    if draft:
        given = (f"draft.model={draft}", "speculative.method=mtp", f"speculative.num_speculative_tokens={TOKENS}")
        yield f"this target has a draft: {draft}; --with-draft adds it (remove {name} first)"
        if machine:
            yield from (f"with it, {line}" for line in expected(name, machine, given))
    if not machine and MACHINES[profile.machine].gpus:
        yield f"expected: gemmaspec fit {name} --machine h100    # your GPU's name: memory, context and tokens/s"


def _toy(*lines: str) -> ProfileOffer:
    toy = f"{_TOY}: tiny models that ship with it and run on any CPU; they show how gemmaspec works, not how fast"
    return ProfileOffer(profile=_TOY, lines=(*lines, toy))
