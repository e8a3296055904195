"""`gemmaspec patch rebase|continue|new|commit|import`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmaspec.cli import options, output

if TYPE_CHECKING:
    from gemmaspec.carry.rebase import Rebased

NewId = Annotated[
    str, typer.Argument(metavar="PATCH", help="Its id: small letters, digits, hyphens; say what it does.")
]
OldId = Annotated[str, typer.Argument(metavar="PATCH", help="Id of a patch.", show_default=False)]
Tree = Annotated[Path | None, typer.Option("--tree", metavar="DIR", help="A folder that holds vllm/.")]
Release = Annotated[str | None, typer.Option("--release", metavar="RELEASE", help="A vLLM release, as 0.34.0.")]
Folder = Annotated[
    Path | None, typer.Option("--patches", metavar="DIR", help="The folder of patches, not the shipped one.")
]


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
    to: Annotated[str | None, typer.Option("--to", metavar="RELEASE", help="A vLLM release, as 0.34.0.")] = None,
    tree: Tree = None,
    floor: Annotated[
        str | None,
        typer.Option("--from", metavar="RELEASE", help="First release the new diff is for; found out when not given."),
    ] = None,
    successor: Annotated[
        str, typer.Option("--successor", metavar="FILE:NAME", help="The function's new name: vllm/….py:Class.name.")
    ] = "",
    folder: Folder = None,
    json: options.Json = False,
) -> None:
    """Carry a patch to a vLLM that it does not fit: a three-way merge, written as one more diff once it is proven.

    A patch that fits is left alone. Exit code 5 when the merge needs a hand; it says where.
    """
    from gemmaspec.carry import rebase as use_case

    folders = (folder,) if folder else ()
    request = use_case.RebaseRequest(patch=patch, to=to, tree=tree, floor=floor, folders=folders, successor=successor)
    _rebased(use_case.rebase(request, output.progress), as_json=json)


def continue_(
    patch: OldId,
    abort: Annotated[bool, typer.Option("--abort", help="Give the rebase up; the patch stays as it is.")] = False,
    json: options.Json = False,
) -> None:
    """Go on with a rebase once its conflicts are resolved, or after it was interrupted."""
    from gemmaspec.carry import rebase as use_case
    from gemmaspec.carry import rebase_state

    if not abort:
        _rebased(use_case.resume(patch, output.progress), as_json=json)
        return
    rebase_state.abort(patch)
    output.progress(f"the rebase of {patch} is given up; the patch is as it was")
    if json:
        output.json_data({"ok": True, "outcome": "aborted", "patch": patch})


def new(
    patch: NewId,
    release: Release = None,
    tree: Tree = None,
    file: Annotated[
        list[str] | None, typer.Option("--file", metavar="vllm/….py", help="A file to edit. Repeatable.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Open a copy of vLLM's files to edit; `gemmaspec patch commit` then makes a patch of the edit.

    Called again, it adds files. For a patch that is there, the edit becomes one more variant of it.
    """
    from gemmaspec.carry import workspace

    places = workspace.open_workspace(patch, file or (), release=release, tree=tree)
    if json:
        output.json_data({"ok": True, "patch": patch, "files": [str(place) for place in places]})
        return
    for place in places:
        output.data(str(place))
    output.progress(f"edit {'it' if len(places) == 1 else 'them'}, then: gemmaspec patch commit {patch}")


def commit(patch: OldId, folder: Folder = None, json: options.Json = False) -> None:
    """Make a patch of the edit: the least diff of each file, and a patch.yaml to fill in.

    It is unreviewed until its texts are written and `reviewed: true` is set.
    """
    from gemmaspec.carry import workspace

    done = workspace.commit(patch, folder=folder, say=output.progress)
    text = done.patch.text
    if json:
        facts = {"patch": patch, "folder": str(done.patch.folder), "diff": done.diff, "versions": done.versions}
        output.json_data({"ok": True, **facts, "reviewed": text.reviewed, "unchanged": list(done.unchanged)})
        return
    output.data(str(done.patch.folder / done.diff))
    for path in done.unchanged:
        output.progress(f"not edited, and not in it: {path}")
    _next(done.patch.folder, reviewed=text.reviewed)


def import_(
    source: Annotated[str, typer.Argument(metavar="URL|FILE", help="A pull request, or a diff.", show_default=False)],
    id_: Annotated[str | None, typer.Option("--id", metavar="PATCH", help="Its id, else made of the name.")] = None,
    release: Release = None,
    tree: Tree = None,
    date: Annotated[
        str | None, typer.Option("--date", metavar="YYYY-MM-DD", help="The day it was taken, to be written down.")
    ] = None,
    folder: Folder = None,
    json: options.Json = False,
) -> None:
    """Make an unreviewed patch of a public diff: its edits of vllm/**/*.py, and where it came from, by sha256.

    With --release it is tried on that release, and reduced to the least diff that does the same. A profile can have
    an unreviewed patch as an optional one alone.
    """
    from gemmaspec.carry import importing

    done = importing.import_diff(
        importing.ImportRequest(source=source, id=id_, release=release, tree=tree, folder=folder, date=date)
    )
    origin = done.patch.text.imported
    assert origin
    if json:
        facts = {"patch": done.patch.id, "folder": str(done.patch.folder), "imported": origin.model_dump()}
        output.json_data({"ok": True, **facts, "dropped": list(done.dropped), "tried": done.tried or None})
        return
    output.data(str(done.patch.folder))
    output.progress(f"from {origin.source}, sha256 {origin.sha256}")
    for path in done.dropped:
        output.progress(f"not in vllm/**/*.py, and left out: {path}")
    output.progress(f"tried on {done.tried}: it applies" if done.tried else "not tried on any release (--release)")
    _next(done.patch.folder, reviewed=False)


def _rebased(done: Rebased, *, as_json: bool) -> None:
    if as_json:
        state = done.verdict.state if done.verdict else None
        facts = {"patch": done.patch, "vllm": done.vllm, "state": state, "diff": done.diff or None}
        place = {"versions": done.versions or None, "base": done.base or None, "moved": dict(done.moved or {})}
        output.json_data({"ok": True, "outcome": done.outcome, **facts, **place})
        return
    if done.verdict:
        variant = f" ({done.verdict.variant})" if done.verdict.variant else ""
        output.progress(f"{done.patch} fits vllm {done.vllm}: {done.verdict.state}{variant}; nothing was changed")
        return
    assert done.folder
    output.data(str(done.folder / done.diff))
    output.progress(
        f"{done.patch} has a diff for {done.versions} now: it applies, is seen to be in, and comes out again"
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
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write it there; to standard output if not given."),
    ] = None,
    folder: Folder = None,
    json: options.Json = False,
) -> None:
    """Write a patch as an ordinary diff for one vLLM, with three lines of context, as git apply and patch take it.

    Exit code 5 when the patch does not apply there.

    gemmaspec patch export draft-text-only --release 0.33.0 | git apply
    """
    from gemmaspec.carry import ordinary
    from gemmaspec.files import unwritable

    made = ordinary.export(patch, release=release, tree=tree, folders=(folder,) if folder else ())
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
        sys.stdout.buffer.write(made.diff)
