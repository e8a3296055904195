"""`gemmaspec patch rebase|continue|new|commit|import`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmaspec.cli import options, output
from gemmaspec.cli.text import page

if TYPE_CHECKING:
    from gemmaspec.check.carry.rebase import Rebased

NewId = Annotated[str, options.argument("PATCH", of="new")]
OldId = Annotated[str, options.argument("PATCH", of="carry")]
Tree = Annotated[Path | None, options.option("--tree", of="carry")]
Release = Annotated[str | None, options.option("--release", of="carry")]


def add_to(group: typer.Typer) -> None:
    """Register the commands in `gemmaspec patch`."""
    group.command("rebase")(rebase)
    group.command("continue")(continue_)
    group.command("new")(new)
    group.command("commit")(commit)
    group.command("import")(import_)
    group.command("export")(export)


def rebase(
    patch: OldId,
    to: Release = None,
    tree: Tree = None,
    floor: Annotated[str | None, options.option("--since")] = None,
    successor: Annotated[str, options.option("--successor")] = "",
    folder: options.PatchFolder = None,
    json: options.Json = False,
) -> None:
    """Rebase a patch onto a vLLM release that it does not fit, by a three-way merge that adds one more diff to it.

    A patch that fits is left unchanged. Exit code 5 if the merge has conflicts; they are listed.
    """
    from gemmaspec.check.carry import rebase as use_case

    folders = (folder,) if folder else ()
    request = use_case.RebaseRequest(patch=patch, to=to, tree=tree, floor=floor, folders=folders, successor=successor)
    _rebased(use_case.rebase(request, output.progress), as_json=json)


def continue_(
    patch: OldId,
    abort: Annotated[bool, options.option("--abort")] = False,
    json: options.Json = False,
) -> None:
    """Continue a rebase after its conflicts are resolved, or after it was interrupted."""
    from gemmaspec.check.carry import rebase as use_case
    from gemmaspec.check.carry import rebase_state

    if not abort:
        _rebased(use_case.resume(patch, output.progress), as_json=json)
        return
    rebase_state.abort(patch)
    output.progress(f"aborted the rebase of {patch}; the patch is unchanged")
    if json:
        output.json_data({"ok": True, "outcome": "aborted", "patch": patch})


def new(
    patch: NewId,
    release: Release = None,
    tree: Tree = None,
    file: Annotated[list[str] | None, options.option("--file")] = None,
    json: options.Json = False,
) -> None:
    """Open a copy of vLLM's files to edit. `gemmaspec patch commit` then turns the edit into a patch.

    Run again, it adds files. For an existing patch, the edit becomes one more variant.
    """
    from gemmaspec.check.carry import workspace

    places = workspace.open_workspace(patch, file or (), release=release, tree=tree)
    page.answer({"ok": True, "patch": patch, "files": places}, map(str, places), as_json=json)
    output.progress(f"edit {'it' if len(places) == 1 else 'them'}, then: gemmaspec patch commit {patch}")


def commit(patch: OldId, folder: options.PatchFolder = None, json: options.Json = False) -> None:
    """Turn the edit into a patch: a minimal diff of each file, and a patch.yaml to fill in.

    The patch is unreviewed until you write its texts and set `reviewed: true`.
    """
    from gemmaspec.check.carry import workspace

    done = workspace.commit(patch, folder=folder, say=output.progress)
    text = done.patch.text
    document = {
        "ok": True,
        "patch": patch,
        "folder": done.patch.folder,
        "diff": done.diff,
        "versions": done.versions,
        "reviewed": text.reviewed,
        "unchanged": done.unchanged,
        "also": done.also,
    }
    page.answer(document, [str(done.patch.folder / done.diff)], as_json=json)
    for path in done.unchanged:
        output.progress(f"not edited, and not in it: {path}")
    if done.also:
        fits = f"it also fits {', '.join(done.also)}"
        output.progress(f"{fits}: variants.0.versions in patch.yaml says for which it is ({done.versions})")
    _next(done.patch.folder, reviewed=text.reviewed)


def import_(
    source: Annotated[str, options.argument("URL|FILE")],
    id_: Annotated[str | None, options.option("--id")] = None,
    release: Release = None,
    tree: Tree = None,
    date: Annotated[str | None, options.option("--date")] = None,
    folder: options.PatchFolder = None,
    json: options.Json = False,
) -> None:
    """Turn a public diff into an unreviewed patch: its edits of vllm/**/*.py, with the source and its sha256.

    With --release it is tried on that release, and reduced to a minimal diff with the same effect. A profile can list
    an unreviewed patch only as optional.
    """
    from gemmaspec.check.carry import importing

    done = importing.import_diff(
        importing.ImportRequest(source=source, id=id_, release=release, tree=tree, folder=folder, date=date)
    )
    origin = done.patch.text.imported
    assert origin
    document = {
        "ok": True,
        "patch": done.patch.id,
        "folder": done.patch.folder,
        "imported": origin,
        "dropped": done.dropped,
        "tried": done.tried or None,
    }
    page.answer(document, [str(done.patch.folder)], as_json=json)
    output.progress(f"from {origin.source}, sha256 {origin.sha256}")
    for path in done.dropped:
        output.progress(f"left out, because it is not in vllm/**/*.py: {path}")
    output.progress(f"tried on {done.tried}: it applies" if done.tried else "not tried on any release (--release)")
    _next(done.patch.folder, reviewed=False)


def _rebased(done: Rebased, *, as_json: bool) -> None:
    document = {
        "ok": True,
        "outcome": done.outcome,
        "patch": done.patch,
        "vllm": done.vllm,
        "state": done.verdict.state if done.verdict else None,
        "diff": done.diff or None,
        "versions": done.versions or None,
        "base": done.base or None,
        "moved": done.moved or {},
    }
    page.answer(document, [str(done.folder / done.diff)] if done.folder else [], as_json=as_json)
    if done.verdict:
        variant = f" ({done.verdict.variant})" if done.verdict.variant else ""
        output.progress(f"{done.patch} fits vllm {done.vllm}: {done.verdict.state}{variant}; nothing to do")
        return
    assert done.folder
    output.progress(
        f"{done.patch} has a diff for {done.versions} now: it applies, is detected as applied, and reverts cleanly"
    )
    output.progress(
        f"next: gemmaspec patch known {done.patch} --patches {done.folder.parent}    # the sha256 of its files"
    )


def _next(folder: Path, *, reviewed: bool) -> None:
    if not reviewed:
        output.progress(f"unreviewed: write the texts marked TODO in {folder / 'patch.yaml'}, then set reviewed: true")


def export(
    patch: OldId,
    release: Release = None,
    tree: Tree = None,
    out: Annotated[Path | None, options.option("--out", "-o", of="carry")] = None,
    folder: options.PatchFolder = None,
    json: options.Json = False,
) -> None:
    """Write a patch as an ordinary diff for one vLLM release, with three lines of context, for git apply and patch.

    Exit code 5 if the patch does not apply there.
    """
    from gemmaspec.check.carry import export as workspace
    from gemmaspec.core.files import unwritable

    made = workspace.export(patch, release=release, tree=tree, folders=(folder,) if folder else ())
    if made.state == "drifted":
        output.progress(f"{patch}: drifted: the function is not that of any known release")
    if out:
        try:
            out.write_bytes(made.diff)
        except OSError as error:
            raise unwritable(out, error) from None
        output.progress(f"wrote {out}")
    if json:
        shown = made.diff.decode("utf-8", "replace")
        output.json_data({"ok": True, "patch": patch, "vllm": made.vllm, "state": made.state, "diff": shown})
    elif not out:
        if sys.stdout.isatty():
            output.data(made.diff.decode(errors="replace"))
        else:
            sys.stdout.buffer.write(made.diff)
