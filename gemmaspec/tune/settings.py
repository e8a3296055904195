"""What a tuning was asked for: kept with what it tried, so that it goes on as it was begun."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from gemmaspec.errors import UsageError

_PART: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([hms])")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that two parts of one tuning must share."""

    profile: str
    overrides: tuple[str, ...]
    engine: str | None
    arms: tuple[str, ...]
    """The other named profiles."""
    others: bool
    """Whether shipped profiles of its target and machine were compared too."""
    ks: tuple[int, ...]
    tries: tuple[str, ...]
    """What was to be tried on the fastest arm, as KEY=VALUE."""
    loads: tuple[int, ...]
    categories: tuple[str, ...]
    each: int
    """Prompts of each category in the last rung; 0 for all."""
    rounds: int
    """Rungs at most."""
    max_tokens: int
    ignore_eos: bool
    temperature: float | None
    """None: as the server decides."""
    repeats: int
    any_text: bool
    prompts: str
    prompts_sha256: str

    def as_json(self) -> dict[str, Any]:
        """Return the settings as a file holds them."""
        return {name: list(one) if isinstance(one, tuple) else one for name, one in asdict(self).items()}

    def differs(self, stored: Mapping[str, Any]) -> str | None:
        """Return the first setting that is not as it was stored; None when all are."""
        own = self.as_json()
        return next((name for name in own if own[name] != stored.get(name)), None)


def seconds_of(text: str, option: str) -> float:
    """Return the seconds of a length of time such as 45m, 1h30m or 90s. Raises UsageError for anything else."""
    whole = "".join(text.split())
    parts = _PART.findall(whole)
    if not parts or "".join("".join(one) for one in parts) != whole:
        raise UsageError(f"{option} must be a time such as 45m, 1h30m or 90s, not {text!r}")
    seconds = sum(float(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in parts)
    if seconds <= 0:
        raise UsageError(f"{option} must be greater than 0")
    return seconds
