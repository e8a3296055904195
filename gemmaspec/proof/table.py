"""The table of docs/explanations/proof.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gemmaspec import launcher
from gemmaspec.patching.patch import Patch
from gemmaspec.proof.prove import Proof

LETTERS: Final = {
    "proven": "P",
    "broken-probe": "B",
    "not-open": "O",
    "not-closed": "N",
    "not-same": "D",
    "unfit": "U",
}
LEGEND: Final = {
    "P": "proven: the probe found the bug in the release, but not in the patched release",
    "B": "the probe itself failed, or saw an error that patch.yaml does not list",
    "O": "the probe did not find the bug in the unpatched release",
    "N": "the probe found the bug in the patched release too",
    "D": "patched kernels compute something else than those of the release",
    "U": "the patch does not apply",
    ".": "the release is outside the patch's ranges",
}


def table(proofs: Sequence[Proof], patches: Sequence[Patch], *, day: str, environment: str) -> str:
    """Return Markdown with a row for each release and a column for each patch, then what each probe saw."""
    releases = sorted({proof.release for proof in proofs}, key=launcher.release_key)
    cells = {(proof.patch, proof.release): LETTERS[proof.outcome] for proof in proofs}
    names = [patch.id for patch in patches]
    rows = [
        f"| {release} | " + " | ".join(cells.get((name, release), ".") for name in names) + " |" for release in releases
    ]
    used = sorted({letter for row in rows for letter in row.split()} & set(LEGEND))
    lines = [
        "# Proof",
        "",
        f"Written by `gemmaspec patch prove --table docs/explanations/proof.md` on {day}. Each patch has a probe,",
        "a small program in its folder. It runs on a CPU against the released Python modules of vLLM, first as they",
        f"are and then with the patches of this table applied, in {environment}. Where a probe puts",
        "something in place of a GPU kernel, it says so.",
        "",
        "| vllm | " + " | ".join(names) + " |",
        "|---|" + ":-:|" * len(names),
        *rows,
        "",
        *(f"- {letter}: {LEGEND[letter]}" for letter in used),
        "",
        "## What the probes saw",
        "",
    ]
    for name in names:
        lines += [f"### {name}", "", *_seen([proof for proof in proofs if proof.patch == name]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _seen(proofs: Sequence[Proof]) -> list[str]:
    """Return lines with what the probes saw; equal texts of several releases are listed once."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for proof in proofs:
        stock = proof.stock.seen if proof.stock else proof.detail
        numbers = proof.numbers.seen if proof.numbers else ""
        found.setdefault((stock, proof.patched.seen if proof.patched else "", numbers), []).append(proof.release)
    lines = []
    for (stock, patched, numbers), releases in found.items():
        lines += [f"- {_span(releases)}", f"  - as released: {_code(stock)}", f"  - patched: {_code(patched)}"]
        lines += [f"  - numbers, patched against released: {_code(numbers)}"] if numbers else []
    return lines


def _span(releases: Sequence[str]) -> str:
    return releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]} ({len(releases)} releases)"


def _code(text: str) -> str:
    """Return any text as one line of code in Markdown."""
    line = " ".join(text.split()).replace("`", "'")
    return f"`{line[:300]}`" if line else "nothing"
