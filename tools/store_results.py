"""Make a file of measurements/ from results of `gemmaspec bench`: store_results.py RESULT... > measurements/NAME.json

A row keeps what core/rows.py reads; what all rows share is written once. `steady: false` marks a row around which the
machine moved, as it always does for a server without full CUDA graphs: leave out a result that a neighbour disturbed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gemmaspec.core.rows import Row, parse_rows
from gemmaspec.measure.bench.result import read_result

_FIGURES: Final = ("tokens_per_second", "step_ms", "ttft_ms", "answer_tokens")
_HEAD: Final = ("machine", "target")


def stored(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the file's content. Raises UsageError where the rows are of several machines."""
    rows = [_kept(row) for result in results for row in result["rows"]]
    first = rows[0]
    same = {key: value for key, value in first.items() if all(key in row and row[key] == value for row in rows)}
    shared = {key: value for key, value in same.items() if key not in (*_HEAD, "method", "k", "concurrency", "context")}
    dummy = any(row.get("weights") == "dummy" for result in results for row in result["rows"])
    named = f"one {first.get('gpu')}, vLLM {first.get('vllm')}, {results[0]['date'][:10]}: {results[0]['profile']}"
    content = {
        "schema": 1,
        "machine": first["machine"],
        "targets": sorted({str(row["target"]).lower() for row in rows}),
        "date": results[0]["date"][:10],
        "source": f"{named} by gemmaspec bench{', dummy weights' if dummy else ''}",
        "same": shared,
        "rows": [{key: value for key, value in row.items() if key not in {*shared, *_HEAD}} for row in rows],
    }
    parse_rows(json.dumps(content), file="what was made")
    return content


def _kept(row: Mapping[str, Any]) -> dict[str, Any]:
    known = {key: value for key, value in row.items() if key in Row.model_fields}
    moved = {} if row["steady"] else {"steady": False}
    return known | {key: round(known[key], 3) for key in _FIGURES if key in known} | moved


if __name__ == "__main__":
    print(json.dumps(stored([read_result(Path(name)) for name in sys.argv[1:]]), indent=1))
