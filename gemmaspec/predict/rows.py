"""Measured rows, as `predict --measured` takes them and `bench --json` writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from gemmaspec.errors import UsageError

NONE: Final = "none"
"""The method of a row without speculation."""
METHODS: Final = (NONE, "draft_model", "eagle", "eagle3", "mtp", "ngram", "suffix", "dflash", "dspark")
MAX_ROWS: Final = 10_000
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_K: Final = 64
MAX_CONCURRENCY: Final = 100_000
MAX_CONTEXT: Final = 10_000_000
_ROUNDING: Final = 1e-6


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What rows must share to be compared: rows of different settings never explain each other."""

    compile: str | bool | None = None
    """How the server was compiled, as reported by the measurement; None if unknown."""
    vllm: str | None = None
    patches: tuple[str, ...] | None = ()
    """The patches for speed that were in, sorted; None if they are not known."""
    backend: str | None = None
    """The attention backend that ran; None if unknown."""

    def __str__(self) -> str:
        said = [f"compile {json.dumps(self.compile)}"] if self.compile is not None else []
        said += [f"vLLM {self.vllm}"] if self.vllm else []
        said += [self.backend] if self.backend else []
        if self.patches != ():
            said.append("patches unknown" if self.patches is None else f"with {' + '.join(self.patches)}")
        return ", ".join(said) or "one setting"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured cell."""

    method: str
    k: int
    """Draft tokens per step; 0 without speculation."""
    concurrency: int
    context: int
    """Prompt tokens."""
    acceptance: tuple[float, ...]
    """r_1 … r_k: share of the drafts whose first i tokens were all accepted."""
    tokens_per_second: float
    """Total of all requests."""
    setting: Setting
    by_lot: bool = False
    """Whether the acceptance is synthetic (`acceptance_by: synthetic`), so that it says nothing about the pair."""

    @property
    def tokens_per_step(self) -> float:
        """E(k) = 1 + r_1 + … + r_k."""
        return 1 + sum(self.acceptance)

    @property
    def step(self) -> float:
        """T(k, batch, context) in seconds."""
        return self.tokens_per_step * self.concurrency / self.tokens_per_second


def parse_rows(text: str, *, file: str) -> tuple[Row, ...]:
    """Return the rows of a measured file. Raises UsageError with the file, the row and the problem."""
    if len(text) > MAX_BYTES:
        raise UsageError(f"{file}: is larger than {MAX_BYTES // 2**20} MiB, too large for a measured file")
    document = _json(text, file)
    rows = document.get("rows") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise UsageError(f'{file}: not a measured file; it has no list "rows"', hint="gemmaspec bench PROFILE --json")
    if not rows:
        raise UsageError(f"{file}: contains no rows")
    if len(rows) > MAX_ROWS:
        raise UsageError(f"{file}: holds {len(rows)} rows; the limit is {MAX_ROWS}")
    raw = [_mapping(row, f"{file}: row {number}") for number, row in enumerate(rows, 1)]
    _same_machine(raw, file)
    _compile_everywhere(raw, file)
    return tuple(_row(row, f"{file}: row {number}") for number, row in enumerate(raw, 1))


def setting_json(setting: Setting) -> dict[str, Any]:
    """Return what a row says of its setting."""
    own: dict[str, Any] = {"compile": setting.compile, **({"vllm": setting.vllm} if setting.vllm else {})}
    own |= {"patches": setting.patches and list(setting.patches)} if setting.patches != () else {}
    return own | ({"attention_backend": setting.backend} if setting.backend else {})


def _json(text: str, file: str) -> Any:
    def refuse(constant: str) -> None:
        raise UsageError(f"{file}: holds {constant}, which cannot be a measured value")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise UsageError(f"{file}: not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise UsageError(f"{file}: nested too deeply for a measured file") from None
    except ValueError:
        raise UsageError(f"{file}: contains a number that is too long") from None


def _mapping(row: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise UsageError(f"{place} is {_shown(row)}, and must be a map of keys")
    return row


def _same_machine(rows: Sequence[Mapping[str, Any]], file: str) -> None:
    for key in ("machine", "gpu"):
        named = sorted({str(row[key])[:80] for row in rows if row.get(key) is not None})
        if len(named) > 1:
            raise UsageError(
                f"{file}: mixes rows of {' and '.join(named[:4])}, but step times are specific to one machine",
                hint="use one file per machine",
            )


def _compile_everywhere(rows: Sequence[Mapping[str, Any]], file: str) -> None:
    lacking = [number for number, row in enumerate(rows, 1) if "compile" not in row]
    if lacking and len(lacking) < len(rows):
        raise UsageError(f"{file}: row {lacking[0]}: compile is missing, but other rows have it")


def _row(row: Mapping[str, Any], place: str) -> Row:
    method = _method(row, place)
    k = _whole(row, "k", place, low=0, high=MAX_K)
    if (method == NONE) != (k == 0):
        raise UsageError(f"{place}: has the method {method} with k {k}; without speculation, write method none and k 0")
    acceptance = _acceptance(row, k, place)
    concurrency = _whole(row, "concurrency", place, low=1, high=MAX_CONCURRENCY)
    return Row(
        method=method,
        k=k,
        concurrency=concurrency,
        context=_whole(row, "context", place, low=0, high=MAX_CONTEXT),
        acceptance=acceptance,
        tokens_per_second=_speed(row, (1 + sum(acceptance)) * concurrency, place),
        setting=Setting(
            compile=_compile(row, place),
            vllm=_text(row, "vllm", place),
            patches=_patches(row, place),
            backend=_text(row, "attention_backend", place),
        ),
        by_lot=row.get("acceptance_by") == "synthetic",
    )


def _method(row: Mapping[str, Any], place: str) -> str:
    method = _given(row, "method", place)
    if method not in METHODS:
        raise UsageError(f"{place}: method is {_shown(method)}, and must be one of {', '.join(METHODS)}")
    return str(method)


def _acceptance(row: Mapping[str, Any], k: int, place: str) -> tuple[float, ...]:
    given = row.get("acceptance")
    if k == 0:
        if given:
            raise UsageError(f"{place}: has k 0 and an acceptance, but without speculation nothing is accepted")
        return ()
    given = _given(row, "acceptance", place)
    if not isinstance(given, list) or not all(_is_number(one) for one in given):
        raise UsageError(f"{place}: acceptance is {_shown(given)}; it must be a list of numbers, one per position")
    if len(given) != k:
        raise UsageError(f"{place}: acceptance has {len(given)} positions, but k is {k}")
    if any(not 0 <= one <= 1 for one in given):
        raise UsageError(f"{place}: acceptance is {_shown(given)}; each must be a share between 0 and 1")
    if any(after > before + _ROUNDING for before, after in pairwise(given)):
        raise UsageError(
            f"{place}: acceptance increases with the position, but r_i counts drafts whose first i tokens are accepted"
        )
    return tuple(float(one) for one in given)


def _speed(row: Mapping[str, Any], tokens: float, place: str) -> float:
    """Return the tokens per second, computed from the step time if necessary."""
    rate, step = (_positive(row, key, place) for key in ("tokens_per_second", "step_ms"))
    if rate is not None:
        return rate
    if step is not None:
        return tokens / step * 1000
    raise UsageError(f"{place}: tokens_per_second and step_ms are missing; one of them is needed")


def _positive(row: Mapping[str, Any], key: str, place: str) -> float | None:
    value = row.get(key)
    if value is None:
        return None
    if not _is_number(value) or not 1e-6 <= value <= 1e9:
        raise UsageError(f"{place}: {key} is {_shown(value)}, and must be a number above 0")
    return float(value)


def _whole(row: Mapping[str, Any], key: str, place: str, *, low: int, high: int) -> int:
    value = _given(row, key, place)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"{place}: {key} is {_shown(value)}, and must be a whole number from {low} to {high}")
    return value


def _compile(row: Mapping[str, Any], place: str) -> str | bool | None:
    value = row.get("compile")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | str):
        return str(value)[:200]
    raise UsageError(f"{place}: compile is {_shown(value)}, and must be a word, true or false")


def _patches(row: Mapping[str, Any], place: str) -> tuple[str, ...] | None:
    """Return the patches for speed; a row without the key has none, and null means that they are unknown."""
    value = row.get("patches", [])
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(one, str) and 0 < len(one) <= 100 for one in value):
        raise UsageError(f"{place}: patches is {_shown(value)}, and must be a list of patches for speed")
    return tuple(sorted(set(value)))


def _text(row: Mapping[str, Any], key: str, place: str) -> str | None:
    value = row.get(key)
    if value is None or isinstance(value, str):
        return value
    raise UsageError(f"{place}: {key} is {_shown(value)}, and must be a text")


def _given(row: Mapping[str, Any], key: str, place: str) -> Any:
    if row.get(key) is None:
        raise UsageError(f"{place}: {key} is missing")
    return row[key]


def _is_number(value: Any) -> bool:
    """Return whether a number is finite, because 1e999 in JSON is infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 10**300 if isinstance(value, int) else math.isfinite(value)


def _shown(value: Any) -> str:
    """Return a value as short text for a message."""
    text = "".join(_printable(ascii(value) if isinstance(value, float) else str(json.dumps(value, default=str))))
    return text if len(text) <= 60 else f"{text[:57]}…"


def _printable(text: str) -> Iterator[str]:
    return (char for char in text[:200] if char.isprintable())
