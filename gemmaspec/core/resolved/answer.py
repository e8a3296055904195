"""An answer that is known, or is not known for a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Unknown:
    """Nothing that was read decides it."""

    because: str
    """Why, as a part of a sentence: `the checkpoint was not read`."""

    def __bool__(self) -> bool:
        """Raise TypeError: what is not known is neither true nor false."""
        raise TypeError(f"not known: {self.because}")


def known(answer: T | Unknown) -> T | None:
    """Return the answer; None where it is not known."""
    if isinstance(answer, Unknown):
        return None
    return answer


def both(answer: bool | Unknown) -> tuple[bool, ...]:
    """Return the values that a yes or no may have."""
    if isinstance(answer, Unknown):
        return (True, False)
    return (answer,)
