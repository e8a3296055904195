"""Print patches, verdicts, release days, and what a patch for speed buys, for people and as JSON."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from gemmaspec.cli import output
from gemmaspec.cli.text import table
from gemmaspec.run.engine.lines import clean

if TYPE_CHECKING:
    from gemmaspec.check.carry.apply import Applied
    from gemmaspec.check.carry.patchset import PatchOnTree, PatchSet
    from gemmaspec.check.carry.verify import Verification
    from gemmaspec.core.patching.decide import FileVerdict
    from gemmaspec.core.patching.evidence import Pair
    from gemmaspec.core.patching.patch import Patch
    from gemmaspec.run.trees.tree import TreeSource


_MOST: Final = 12
"""The most cells that are shown to a person."""


def paragraphs(patch: Patch) -> Iterator[tuple[str, list[str]]]:
    """Yield the paragraphs of `patch explain` that only a patch for speed has."""
    from gemmaspec.core.patching.evidence import pairs_of

    claims = [
        f"vllm {claim.versions} on {', '.join(claim.gpus)}: {', '.join(claim.methods)} with {', '.join(claim.backends)}"
        for claim in patch.text.pays
    ]
    yield "Where patches.speed: auto takes it", claims or ["nowhere yet: it claims no setting in which it pays"]
    pairs = sorted(pairs_of(patch.id, patch.evidence), key=lambda pair: -pair.gain)
    if pairs:
        more = [f"and {len(pairs) - _MOST} more cells: patch explain --json"] if len(pairs) > _MOST else []
        yield "What it buys, measured", [*map(_line, pairs[:_MOST]), *more]
        slowest = pairs[-1]
        if slowest.gain < 1:
            yield "Where it costs most", [_line(slowest)]
    sources = dict.fromkeys(f"{run.gpu}, {run.date}: {run.source}" for run in patch.evidence)
    if sources:
        yield "Where the cells come from", list(sources)
    if patch.text.dropped_in:
        yield "The release of vLLM that has it", [patch.text.dropped_in]


def _line(pair: Pair) -> str:
    row = pair.having
    method = "no speculation" if row.method == "none" else f"{row.method} k={row.k}"
    cell = f"{method}, {row.context:,} tokens of prompt, {row.concurrency} concurrent, vllm {row.vllm}"
    gains = [f"{pair.without.step_ms:.1f} -> {row.step_ms:.1f} ms a step, {pair.step_gain:.2f} times"]
    if pair.first_token_gain and pair.without.ttft_ms and row.ttft_ms:
        gains.append(
            f"first token {pair.without.ttft_ms:,.0f} -> {row.ttft_ms:,.0f} ms, {pair.first_token_gain:.2f} times"
        )
    beside = sorted({*row.patches} & {*pair.without.patches})
    return f"{cell}{f', with {chr(44).join(beside)}' if beside else ''}: {'; '.join(gains)}"


def document(patch: Patch) -> dict[str, Any]:
    """Return the same for machines; nothing for a patch of a defect."""
    from gemmaspec.core.patching.evidence import pairs_of

    if not patch.is_speed:
        return {}
    pairs = [
        {
            "machine": pair.run.machine,
            "date": pair.run.date,
            "with": pair.having,
            "without": pair.without,
            "step_gain": pair.step_gain,
            "first_token_gain": pair.first_token_gain,
        }
        for pair in pairs_of(patch.id, patch.evidence)
    ]
    return {"pays": patch.text.pays, "dropped_in": patch.text.dropped_in, "evidence": pairs}


@contextlib.contextmanager
def tree_progress() -> Iterator[Callable[[TreeSource], None]]:
    """Show a live line on a terminal's stderr while trees are read; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from gemmaspec.cli.text.screen import Screen

    with Screen(stderr=True).status("reading vllm") as status:
        yield lambda place: status.update(f"read {place}")


def verified(outcome: Verification, *, strict: bool, as_json: bool) -> int:
    """Print what `verify` found and return the exit code."""
    code = 5 if outcome.conflict else 4 if outcome.unread else 3 if strict and outcome.drift else 0
    if as_json:
        output.json_data(_outcome_json(outcome, ok=not code))
    else:
        from gemmaspec.cli.text import matrix

        matrix.show(outcome)
    for note in outcome.notes:
        output.progress(clean(f"note: {note}"))
    if outcome.bytes_of_wheels:
        output.progress(
            f"read {outcome.bytes_received / 1e6:.1f} MB of {outcome.bytes_of_wheels / 1e9:.1f} GB of wheels"
        )
    told: set[str] = set()
    for unread in outcome.unread:
        if unread.error.message not in told:
            same = [str(failed.place) for failed in outcome.unread if failed.error.message == unread.error.message]
            output.progress(f"cannot read {', '.join(same)}: {unread.error.message}")
            output.progress(f"  try: {unread.error.hint}") if unread.error.hint else None
        told.add(unread.error.message)
    return code


def _outcome_json(outcome: Verification, *, ok: bool) -> dict[str, Any]:
    """Return the document of `--json` without its schema: a row for each patch and tree, and for each unread tree."""
    unread: list[dict[str, Any]] = [
        {
            "patch": None,
            "tree": {"kind": failed.place.kind, "ref": failed.place.ref, "vllm": None},
            "state": "unread",
            "required": True,
            "variant": None,
            "detail": failed.error.message,
            "hint": failed.error.hint,
            "files": [],
        }
        for failed in outcome.unread
    ]
    return {"ok": ok, "results": [*map(_cell_json, outcome.cells), *unread]}


def _cell_json(cell: PatchOnTree) -> dict[str, Any]:
    return {
        "patch": cell.verdict.patch,
        "tree": {"kind": cell.place.kind, "ref": cell.place.ref, "vllm": cell.vllm},
        "state": cell.verdict.state,
        "required": cell.required,
        "variant": cell.verdict.variant,
        "detail": cell.verdict.detail,
        "files": [_file_json(file) for file in cell.verdict.files],
    }


def _file_json(file: FileVerdict) -> dict[str, Any]:
    """Return the row of one file, with the expected and the found lines if they differ."""
    row = {"path": file.path, "state": file.state, "line": file.line, "detail": file.detail}
    if not (file.expected or file.found):
        return row
    return {**row, "expected": list(file.expected), "found": list(file.found)}


def listing(patches: PatchSet, *, as_json: bool) -> None:
    """Print one line per patch."""
    if as_json:
        output.json_data(
            {
                "patches": [_summary(patches.every[name]) for name in patches.judges],
                "refused": {name: error.message for name, error in patches.refused.items()},
            }
        )
        return
    columns = (
        table.Column("PATCH"), table.Column("VLLM"), table.Column("NEEDED BY", 1), table.Column("TITLE", wraps=True),
    )  # fmt: skip
    table.show(columns, [_row(patches.every[name]) for name in patches.judges])
    for error in patches.refused.values():
        output.progress(f"invalid patch: {error.message}")


def _row(patch: Patch) -> tuple[str, ...]:
    unreviewed = "" if patch.text.reviewed else "unreviewed; "
    users = _takers(patch) if patch.is_speed else _users(patch.id)
    return patch.id, _range(patch), f"{unreviewed}{users}", patch.text.title


def _takers(patch: Patch) -> str:
    """Return which servers take a patch for speed by themselves."""
    gpus = dict.fromkeys(gpu for claim in patch.text.pays for gpu in claim.gpus)
    methods = dict.fromkeys(method for claim in patch.text.pays for method in claim.methods)
    return f"speed: {', '.join(methods)} on {', '.join(gpus)}" if gpus else "speed: nothing measured yet"


def show(patches: PatchSet, name: str, *, as_json: bool) -> None:
    """Print a patch's metadata and diffs."""
    patch = _only(patches, name)
    diffs = {variant.diff: (patch.folder / variant.diff).read_text(encoding="utf-8") for variant in patch.text.variants}
    if as_json:
        output.json_data({"patch": patch.text, "folder": patch.folder, "diffs": diffs})
        return
    import yaml

    output.data(f"# {patch.folder / 'patch.yaml'}")
    output.data(yaml.safe_dump(patch.text.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=110))
    for file, text in diffs.items():
        output.data(f"# {patch.folder / file}\n{text}")


def explain(patches: PatchSet, name: str, *, as_json: bool) -> None:
    """Print what a patch is for."""
    patch = _only(patches, name)
    if as_json:
        output.json_data(_summary(patch) | _explanation(patch) | document(patch))
        return
    output.data(f"{patch.id}: {patch.text.title}\n")
    for head, lines in _paragraphs(patch):
        output.data(head)
        for line in lines:
            output.data(textwrap.fill(line, 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))


def _paragraphs(patch: Patch) -> Iterator[tuple[str, list[str]]]:
    text = patch.text
    yield "What is slow" if patch.is_speed else "The bug", [text.hole]
    if patch.is_speed:
        yield from paragraphs(patch)
    if text.errors:
        yield "Errors in the log without the patch", list(text.errors)
    yield (
        "Where it is",
        [
            f"vllm {variant.versions}: {', '.join(one or 'the top level' for one in dict.fromkeys(scopes))} in {path}"
            for variant in text.variants
            for path, scopes in variant.scopes.items()
        ],
    )
    runner = "both model runners" if text.runner == "any" else f"model runner {text.runner} only"
    yield "When it takes effect", [f"with {runner}" + (", only with speculation" if text.speculation_only else "")]
    who = [f"method {', '.join(text.required_by.methods)}: {text.required_by.when}"]
    yield ("Who gains", who) if patch.is_speed else ("Who needs it", [*who, _users(patch.id)])
    if text.needs:
        yield "Patches it needs", list(text.needs)
    if text.until:
        yield "Why not for later releases", [text.until]
    if text.superseded:
        rules = [
            f"{rule.scope} in {rule.path} is "
            + (f"that of {rule.release}" if rule.tree else "fixed in words of its own")
            for rule in text.superseded
        ]
        yield "How a vLLM with its own fix is detected", rules
    seen = [f"{thread.url}: {thread.state} (seen {thread.seen})" for thread in text.upstream]
    yield "What upstream says", seen or ["no known thread"]
    yield "When to remove it", [text.drop_when]


def _explanation(patch: Patch) -> dict[str, Any]:
    text = patch.text.model_dump(mode="json")
    keys = (
        "hole", "errors", "required_by", "runner", "speculation_only", "needs", "until", "superseded", "upstream",
        "drop_when",
    )  # fmt: skip
    return {"where": {row["versions"]: row["scopes"] for row in text["variants"]}, **{key: text[key] for key in keys}}


def _summary(patch: Patch) -> dict[str, Any]:
    from gemmaspec.check.carry.shipped import uses

    return {
        "id": patch.id,
        "purpose": patch.text.purpose,
        "title": patch.text.title,
        "versions": [variant.versions for variant in patch.text.variants],
        "reviewed": patch.text.reviewed,
        "profiles": uses(patch.id),
        "folder": patch.folder,
    }


def _range(patch: Patch) -> str:
    first, last = patch.text.variants[0].versions, patch.text.variants[-1].versions
    lower, _, _ = first.partition(",")
    _, _, upper = last.partition(",")
    return f"{lower},{upper}" if upper else lower


def _users(name: str) -> str:
    from gemmaspec.check.carry.shipped import uses

    users = uses(name)
    parts = [f"{how} by {', '.join(names)}" for how, names in vars(users).items() if names]
    return "; ".join(parts) or "no shipped profile"


def _only(patches: PatchSet, name: str) -> Patch:
    if name in patches.refused:
        raise patches.refused[name]
    return patches.every[name]


def applied(built: Applied, *, as_json: bool) -> None:
    """Print what `apply` did."""
    if as_json:
        rows = [{"patch": row.patch.id, "state": row.state, "variant": row.variant} for row in built.results]
        out = str(built.out) if built.changed else None
        output.json_data({"ok": True, "out": out, "vllm": built.vllm, "patches": rows, "changed": list(built.changed)})
        return
    for result in built.results:
        output.data(f"{result.patch.id}: {result.state}{f' ({result.variant})' if result.variant else ''}")
    if not built.changed:
        output.progress(f"vllm {built.vllm} needs no patched file, so no overlay was written")
    for path in built.changed:
        output.data(f"  {built.out / path}")
