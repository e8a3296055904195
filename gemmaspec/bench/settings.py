"""What a run of `bench` was asked to measure: kept in its result, so that it can be resumed as it was begun."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemmaspec.bench.cells import NONE, Arm
from gemmaspec.errors import UsageError
from gemmaspec.profile.model import Profile


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that two parts of one run must share."""

    profile: str
    overrides: tuple[str, ...]
    engine: str | None
    running: bool
    """Whether a server that runs already is measured, and none is started."""
    url: str | None
    ks: tuple[int, ...]
    concurrencies: tuple[int, ...]
    contexts: tuple[int, ...]
    categories: tuple[str, ...]
    each: int
    """Prompts of each category; 0 for all."""
    max_tokens: int
    ignore_eos: bool
    temperature: float | None
    """None: as the server decides."""
    rounds: int
    repeats: int
    """How often a cell is measured again whose reference moved."""
    any_text: bool
    prompts: str
    prompts_sha256: str

    def differs(self, stored: Mapping[str, Any]) -> str | None:
        """The first setting that is not as in a stored result; None when all are."""
        own = as_json(self)
        return next((name for name in own if own[name] != stored.get(name)), None)


def as_json(settings: Settings) -> dict[str, Any]:
    """The settings as a result holds them."""
    whole = dataclasses.asdict(settings)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in whole.items()}


def arms_of(profile: Profile, ks: tuple[int, ...]) -> tuple[Arm, ...]:
    """The arms of a profile: without speculation for k 0, with its method for each other k.

    Without `ks`: none and the profile's own. Raises UsageError for a k that the profile cannot have.
    """
    spec = profile.speculative
    if not spec:
        if any(ks):
            raise UsageError(f"{profile.name} does not speculate, so its only k is 0")
        return (Arm(method=NONE, k=0),)
    own = spec.num_speculative_tokens or 0
    return tuple(Arm(method=NONE, k=0) if k == 0 else arm_of(profile, k) for k in ks or (0, own))


def arm_of(profile: Profile, k: int) -> Arm:
    """Return the arm of a profile's method with another number of drafted tokens.

    Raises UsageError where its acceptance is drawn by lot for fewer positions.
    """
    spec = profile.speculative
    assert spec
    if k == spec.num_speculative_tokens:
        return Arm(method=spec.method, k=k)
    overrides = [f"speculative.num_speculative_tokens={k}"]
    if rates := spec.synthetic_acceptance_rates:
        if len(rates) < k:
            raise UsageError(
                f"--k {k}: speculative.synthetic_acceptance_rates has {len(rates)} rates, and {k} are needed"
            )
        overrides.append(f"speculative.synthetic_acceptance_rates=[{', '.join(f'{rate:g}' for rate in rates[:k])}]")
    return Arm(method=spec.method, k=k, overrides=tuple(overrides))
