"""`gemmaspec share`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from gemmaspec.cli import options, output
from gemmaspec.errors import GemmaspecError


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("share")(share)


def share(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="Result of bench: its folder or its result.json.")],
    repo: Annotated[
        str | None, typer.Option("--repo", metavar="OWNER/NAME", help="Repository on GitHub to open the issue in.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write it in spite of what cannot stand as a figure.")] = False,
    json: options.Json = False,
) -> None:
    """Show what would be shared of a measurement, and write it as the text of an issue.

    It has machine, models, versions, conditions and figures; no path, address, host name or override. Nothing is sent:
    the command that opens the issue is printed. Exit code 1 if something cannot stand as a figure.
    """
    from gemmaspec.bench import share as sharing
    from gemmaspec.bench.stored import read_result
    from gemmaspec.files import write_whole

    found = sharing.shared(read_result(result))
    doubts = list(sharing.doubts(found))
    text = sharing.markdown(found)
    file = (result if result.is_dir() else result.parent) / "share.md"
    if json:
        output.json_data({"ok": not doubts, "shared": found, "doubts": doubts, "file": str(file)})
    else:
        output.data(text)
    if doubts and not force:
        raise GemmaspecError("\n".join(doubts), hint=f"gemmaspec share {shlex.quote(str(result))} --force")
    write_whole(file, text)
    title = text.splitlines()[0].removeprefix("# ")
    output.progress(f"wrote {file}; nothing was sent")
    place = ["--repo", repo] if repo else []
    output.progress(
        f"next: {shlex.join(['gh', 'issue', 'create', *place, '--title', title, '--body-file', str(file)])}"
    )
