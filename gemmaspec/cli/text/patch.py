"""Print patches for people and as JSON."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gemmaspec.cli import output
from gemmaspec.cli.text import page, table
from gemmaspec.cli.text.evidence import document, paragraphs

if TYPE_CHECKING:
    from gemmaspec.check.carry.apply import Applied
    from gemmaspec.check.carry.patchset import PatchSet
    from gemmaspec.core.patching.patch import Patch
    from gemmaspec.run.trees.tree import TreeSource


@contextlib.contextmanager
def tree_progress() -> Iterator[Callable[[TreeSource], None]]:
    """Show a live line on a terminal's stderr while trees are read; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from gemmaspec.cli.text.screen import Screen

    with Screen(stderr=True).status("reading vllm") as status:
        yield lambda place: status.update(f"read {place}")


def listing(patches: PatchSet, *, as_json: bool) -> None:
    """Print one line per patch."""
    document = {
        "patches": [_summary(patches.every[name]) for name in patches.judges],
        "refused": {name: error.message for name, error in patches.refused.items()},
    }
    columns = (
        table.Column("PATCH"), table.Column("VLLM", 1), table.Column("NEEDED BY", 2), table.Column("TITLE", wraps=True),
    )  # fmt: skip
    table.answer(document, columns, [_row(patches.every[name]) for name in patches.judges], as_json=as_json)
    for error in patches.refused.values():
        output.progress(f"invalid patch: {error.message}")


def _row(patch: Patch) -> tuple[str, ...]:
    unreviewed = "" if patch.text.reviewed else "unreviewed; "
    if patch.is_speed:
        users = _takers(patch)
    else:
        users = _users(patch.id)
    return patch.id, _range(patch), f"{unreviewed}{users}", patch.text.title


def _takers(patch: Patch) -> str:
    """Return which servers take a patch for speed by themselves."""
    gpus: dict[str, None] = {}
    methods: dict[str, None] = {}
    for claim in patch.text.pays:
        gpus |= dict.fromkeys(claim.gpus)
        methods |= dict.fromkeys(claim.methods)
    if not gpus:
        return "speed: nothing measured yet"
    drafts = ", ".join("no draft" if method == "none" else method for method in methods)
    return f"speed: {drafts} on {', '.join(gpus)}"


def show(patches: PatchSet, name: str, *, as_json: bool) -> None:
    """Print a patch's metadata and diffs."""
    patch = _only(patches, name)
    names = [variant.diff for variant in patch.text.variants]
    diffs = {name: (patch.folder / name).read_text(encoding="utf-8") for name in names}
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
    page.answer(_summary(patch) | _explanation(patch) | document(patch), _explained_lines(patch), as_json=as_json)


def _explained_lines(patch: Patch) -> Iterator[str]:
    yield f"{patch.id}: {patch.text.title}"
    for head, texts in _paragraphs(patch):
        yield ""
        yield head
        for text in texts:
            for line in text.splitlines():
                yield f"  {line}"


def _paragraphs(patch: Patch) -> Iterator[tuple[str, list[str]]]:
    text = patch.text
    yield "What is slow" if patch.is_speed else "The bug", [text.hole]
    if patch.is_speed:
        yield from paragraphs(patch)
    if text.errors:
        yield "Errors in the log without the patch", list(text.errors)
    places = []
    for variant in text.variants:
        for path, scopes in variant.scopes.items():
            names = ", ".join(scope or "the top level" for scope in dict.fromkeys(scopes))
            places.append(f"vllm {variant.versions}: {names} in {path}")
    yield "Where it is", places
    if text.runner == "any":
        runner = "both model runners"
    else:
        runner = f"model runner {text.runner} only"
    yield "When it takes effect", [f"with {runner}" + (", only with speculation" if text.speculation_only else "")]
    who = [f"method {', '.join(text.required_by.methods)}: {text.required_by.when}"]
    yield ("Who gains", who) if patch.is_speed else ("Who needs it", [*who, _users(patch.id)])
    if text.needs:
        yield "Patches it needs", list(text.needs)
    if text.until:
        yield "Why not for later releases", [text.until]
    if text.superseded:
        rules = []
        for rule in text.superseded:
            fix = f"that of {rule.release}" if rule.tree else "fixed in words of its own"
            rules.append(f"{rule.scope} in {rule.path} is {fix}")
        yield "How a vLLM with its own fix is detected", rules
    seen = [f"{thread.url}: {thread.state} (seen {thread.seen})" for thread in text.upstream]
    yield "What upstream says", seen or ["no known thread"]
    yield "When to remove it", [text.drop_when]


def _explanation(patch: Patch) -> dict[str, Any]:
    keys = {
        "hole", "errors", "required_by", "runner", "speculation_only", "needs", "until", "superseded", "upstream",
        "drop_when",
    }  # fmt: skip
    where = {variant.versions: variant.scopes for variant in patch.text.variants}
    return {"where": where, **patch.text.model_dump(mode="json", include=keys)}


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
    if upper:
        return f"{lower},{upper}"
    return lower


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
    rows = [{"patch": row.patch.id, "state": row.state, "variant": row.variant} for row in built.results]
    document = {
        "ok": True,
        "out": built.out if built.changed else None,
        "vllm": built.vllm,
        "patches": rows,
        "changed": built.changed,
    }
    page.answer(document, _applied_lines(built), as_json=as_json)
    if not built.changed:
        output.progress(f"vllm {built.vllm} needs no patched file, so no overlay was written")


def _applied_lines(built: Applied) -> Iterator[str]:
    for result in built.results:
        yield f"{result.patch.id}: {result.state}{f' ({result.variant})' if result.variant else ''}"
    for path in built.changed:
        yield f"  {built.out / path}"
