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
    "unfit": "U",
}
LEGEND: Final = {
    "P": "proven: the probe found the hole in the release and not in the patched release",
    "B": "the probe itself failed, or saw another error than patch.yaml names",
    "O": "the probe found no hole in the release as it is",
    "N": "the probe found the hole in the patched release too",
    "U": "the patch does not apply",
    ".": "the patch does not claim the release",
}


def table(proofs: Sequence[Proof], patches: Sequence[Patch], *, day: str, environment: str) -> str:
    """Markdown: a row for each release, a column for each patch, then what each probe saw."""
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
    """The same words over several releases are said once."""
    found: dict[tuple[str, str], list[str]] = {}
    for proof in proofs:
        looks = (proof.stock.seen if proof.stock else proof.detail, proof.patched.seen if proof.patched else "")
        found.setdefault(looks, []).append(proof.release)
    lines = []
    for (stock, patched), releases in found.items():
        lines += [f"- {_span(releases)}", f"  - as released: {_code(stock)}", f"  - patched: {_code(patched)}"]
    return lines


def _span(releases: Sequence[str]) -> str:
    return releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]} ({len(releases)} releases)"


def _code(text: str) -> str:
    """One line of code in Markdown, whatever it holds."""
    line = " ".join(text.split()).replace("`", "'")
    return f"`{line[:300]}`" if line else "nothing"
