"""Write docs/explanations/proof.md: what each patch's probe found in which releases.

.venv/bin/gemmaspec patch prove --all-releases --json | .venv/bin/python tools/proof_table.py
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gemmaspec.check.proof import environment

PAGE: Final = Path(__file__).parent.parent / "docs" / "explanations" / "proof.md"
OUTCOMES: Final = {
    "proven": "proven",
    "broken-probe": "the probe itself failed, or saw an error that patch.yaml does not list",
    "not-open": "the probe did not find the bug in the unpatched release",
    "not-closed": "the probe found the bug in the patched release too",
    "not-same": "patched kernels compute something else than those of the release",
    "unfit": "the patch does not apply",
}


def table(results: Sequence[Mapping[str, Any]], *, day: str, packages: str) -> str:
    """Return Markdown with a section for each patch: what its probe found in which releases."""
    lines = [
        "# Proof",
        "",
        f"Written by `tools/proof_table.py` on {day}, in {packages}: what [each patch's probe](patching.md#proof)",
        "finds in vLLM's modules as released, and with these patches. Where no other outcome stands, it is proven.",
        "",
    ]
    for patch in sorted({row["patch"] for row in results}):
        lines += [f"## {patch}", "", *_seen([row for row in results if row["patch"] == patch]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _seen(proofs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines with what the probes saw; equal texts of several releases are listed once."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for proof in proofs:
        stock = proof["stock"]["seen"] if proof["stock"] else proof["detail"]
        patched, numbers = (side["seen"] if side else "" for side in (proof["patched"], proof["numbers"]))
        rows.setdefault((OUTCOMES[proof["outcome"]], stock, patched, numbers), []).append(proof["release"])
    lines = []
    for (outcome, stock, patched, numbers), releases in rows.items():
        lines.append(f"- {_span(releases)}" + ("" if outcome == OUTCOMES["proven"] else f": {outcome}"))
        lines += [f"  - released: {_code(stock)}", f"  - patched: {_code(patched)}"]
        lines += [f"  - numbers: {_code(numbers)}"] if numbers else []
    return lines


def _span(releases: Sequence[str]) -> str:
    return releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"


def _code(text: str) -> str:
    """Return any text as one line of code in Markdown."""
    line = " ".join(text.split()).replace("`", "'")
    shown = line if len(line) <= 100 else f"{line[:99]}…"
    return f"`{shown}`" if line else "nothing"


def main() -> None:
    """Write the page from what `patch prove --json` printed."""
    results = json.load(sys.stdin)["results"]
    packages = f"an environment of {environment.TORCH} and {environment.TRANSFORMERS}"
    PAGE.write_text(table(results, day=time.strftime("%Y-%m-%d", time.gmtime()), packages=packages))


if __name__ == "__main__":
    main()
