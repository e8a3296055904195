"""What others published of a profile, what is expected of it here, and why the two differ."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.profile.load import load_profile

if TYPE_CHECKING:
    from gemmaspec.check.predict.predict import Predicted
    from gemmaspec.core.profile.model import Measured


def published(name: str, machine: str) -> Iterator[str]:
    """Yield the first published speed of one request on this machine, and why it is not the expected one.

    A step takes as long for any text, but a text that is easy to foretell accepts more of what is drafted.
    """
    found = next((cell for cell in load_profile(name).profile.measured if _is_of_one(cell, machine)), None)
    if found is None:
        return
    if found.baseline:
        without = f", {found.baseline:g} without a draft"
    else:
        without = ""
    target = f"; {found.target}" if found.target else ""
    yield f"published: {found.tokens_per_second:g} tokens/s{without} ({found.source}{target})"
    row = _predicted(name, machine)
    if row is None or not row.k or found.tokens_per_second is None:
        return
    amounts = found.tokens_per_second * row.step.seconds
    assumed = row.curve.tokens_per_step
    if amounts > row.k + 1:
        most_ms, step_ms = (row.k + 1) / found.tokens_per_second * 1000, row.step.seconds * 1000
        yield (
            f"the two differ because expected assumes {assumed:.1f} tokens a step and {step_ms:.0f} ms; "
            f"the published server took at most {most_ms:.0f} ms, with all {row.k} drafted tokens accepted"
        )
    elif abs(amounts / assumed - 1) > 0.1:
        yield (
            f"the two differ because expected assumes {assumed:.1f} tokens a step, and the published figure amounts to "
            f"{amounts:.1f}: how many drafted tokens are accepted depends on the text"
        )


def _is_of_one(cell: Measured, machine: str) -> bool:
    return cell.machine == machine and cell.concurrency == 1 and cell.tokens_per_second is not None


def _predicted(name: str, machine: str) -> Predicted | None:
    from gemmaspec.check.use_cases.predict import PredictRequest, predict_profile

    spec = load_profile(name).profile.speculative
    k = spec.k_at(1) if spec else 0
    with contextlib.suppress(GemmaspecError):
        guess = predict_profile(PredictRequest(profile=name, machine=machine, concurrencies=(1,)))
        return next((row for row in guess.rows if row.k == k and row.concurrency == 1), None)
    return None
