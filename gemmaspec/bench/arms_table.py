"""What was measured, for report.html: where the arms differ as a table, and what all of them have in common."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any


def arms_table(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the HTML of a result's provenance and settings."""
    provenance = dict(document["provenance"])
    arms = {str(name): dict(_flat("", facts)) for name, facts in (provenance.pop("arms", None) or {}).items()}
    keys = list(dict.fromkeys(key for facts in arms.values() for key in facts))
    differing = [key for key in keys if len({facts.get(key) for facts in arms.values()}) > 1]
    if differing:
        head = "".join(f"<th>{text(_arm(name))}</th>" for name in arms)
        rows = "".join(_row(key, [facts.get(key) for facts in arms.values()]) for key in differing)
        first = f"<tr><th>where the arms differ</th>{head}</tr>"
        yield f'<div class="scroll"><table class="arms">{first}{rows}</table></div>'
    run = dict(_flat("", {"date": document["date"], **provenance}))
    common = {key: next(iter(arms.values()))[key] for key in keys if key not in differing}
    for title, facts in (
        ("Machine and date", run),
        ("What was asked", dict(_flat("", document["settings"]))),
        ("What every server had in common", common),
    ):
        if facts:
            listed = "".join(f"<dt>{text(key)}</dt><dd>{text(value)}</dd>" for key, value in facts.items())
            yield f"<details><summary>{title} ({len(facts)})</summary><dl>{listed}</dl></details>"


def text(value: object) -> str:
    """Return a value as HTML text: escaped, without control characters, limited in length."""
    return escape("".join(char for char in str(value) if char.isprintable())[:2000])


def _arm(name: str) -> str:
    """Return an arm's name in a result, METHOD/K and perhaps a setting, as people read it."""
    method, _, rest = name.partition("/")
    k, _, knob = rest.partition("/")
    said = f"{method} k={k}" if k not in ("", "0") else "no speculation"
    return f"{said}, {knob}" if knob else said


def _row(key: str, values: list[str | None]) -> str:
    cells = "".join(f"<td>{'–' if value is None else text(value)}</td>" for value in values)
    return f"<tr><td>{text(key)}</td>{cells}</tr>"


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the leaves by their dotted names, without those that are empty."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), one)
    elif value not in (None, [], ""):
        yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
