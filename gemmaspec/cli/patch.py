"""`gemmaspec patch list|show|explain|verify|apply|release-day|known`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemmaspec.cli import help as help_
from gemmaspec.cli import options, output, patch_carry


def _complete(incomplete: str) -> list[str]:
    from gemmaspec import data

    names = {file.parent.name for folder in data.patch_folders() for file in folder.glob("*/patch.yaml")}
    return sorted(name for name in names if name.startswith(incomplete))


PatchId = Annotated[
    str,
    typer.Argument(metavar="PATCH", help="Id of a patch.", autocompletion=_complete, show_default=False),
]
PatchIds = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATCH", help="Ids of patches. [default: all]", autocompletion=_complete, show_default=False
    ),
]
Folders = Annotated[
    list[Path] | None,
    typer.Option("--patches", metavar="DIR", help="Folder of patches to use instead of the shipped ones. Repeatable."),
]
Refresh = Annotated[
    bool, typer.Option("--refresh", help="Fetch the list of releases again even if it was fetched today.")
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    from gemmaspec.cli import patch_prove

    group = help_.group("patch")
    group.command("list")(list_)
    group.command("release-day")(release_day)
    for command in (show, explain, verify, apply, known):
        group.command(command.__name__)(command)
    patch_carry.add_to(group)
    patch_prove.add_to(group)
    app.add_typer(group, name="patch")


def list_(folders: Folders = None, json: options.Json = False) -> None:
    """List the patches with their releases and the shipped profiles that need them."""
    from gemmaspec.carry.patchset import load_set
    from gemmaspec.cli.text import patch as text

    patches = load_set((), folders or ())
    text.listing(patches, as_json=json)


def show(patch: PatchId, folders: Folders = None, json: options.Json = False) -> None:
    """Print a patch: its metadata and its diffs."""
    from gemmaspec.carry.patchset import load_set
    from gemmaspec.cli.text import patch as text

    text.show(load_set((patch,), folders or ()), patch, as_json=json)


def explain(patch: PatchId, folders: Folders = None, json: options.Json = False) -> None:
    """Explain a patch: the bug, the error without it, where it is, what upstream says, who needs it."""
    from gemmaspec.carry.patchset import load_set
    from gemmaspec.cli.text import patch as text

    text.explain(load_set((patch,), folders or ()), patch, as_json=json)


def verify(
    patches: PatchIds = None,
    release: Annotated[
        list[str] | None,
        typer.Option("--release", metavar="RELEASE", help="0.26.0, 0.24.0..0.27.1 or '>=0.24,<0.27'. Repeatable."),
    ] = None,
    all_releases: Annotated[
        bool, typer.Option("--all-releases", help="Check every release that the patches claim.")
    ] = False,
    image: Annotated[
        list[str] | None, typer.Option("--image", metavar="REF", help="Docker image on this machine. Repeatable.")
    ] = None,
    tree: Annotated[
        list[Path] | None, typer.Option("--tree", metavar="DIR", help="Folder that contains vllm/. Repeatable.")
    ] = None,
    running: Annotated[
        list[str] | None,
        typer.Option(
            "--server", metavar="NAME", help="A server, by name. Repeatable.", autocompletion=options.complete_stack
        ),
    ] = None,
    folders: Folders = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 3 if a required patch applies to a function that has changed.")
    ] = False,
    by_behaviour: Annotated[
        bool,
        typer.Option(
            "--by-behaviour", help="Run the probe of a patch that conflicts: vLLM's own modules, on this machine's CPU."
        ),
    ] = False,
    refresh: Refresh = False,
    json: options.Json = False,
) -> None:
    """Check whether each patch applies, without a GPU and without downloading vLLM.

    By default checks all releases that the patches claim, and those images of the shipped profiles that are on this
    machine. Exit code 5 if a required patch does not apply, 4 if a tree cannot be read; with --strict, 3 if one applies
    to a function that no known release has.
    """
    from gemmaspec.carry import verify as use_case
    from gemmaspec.cli.text import patch as text

    request = use_case.VerifyRequest(
        patches=tuple(patches or ()),
        folders=tuple(folders or ()),
        releases=tuple(release or ()),
        all_releases=all_releases,
        images=tuple(image or ()),
        trees=tuple(tree or ()),
        running=tuple(running or ()),
        strict=strict,
        by_behaviour=by_behaviour,
        refresh=refresh,
    )
    with text.tree_progress() as progress:
        outcome = use_case.verify(request, progress, output.progress)
    raise typer.Exit(text.verified(outcome, strict=request.strict, as_json=json))


def apply(
    tree: Annotated[Path, typer.Option("--tree", metavar="DIR", help="Folder that contains vllm/.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Overlay folder to write.")],
    patches: PatchIds = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="PROFILE",
            help="Use the patches of this profile.",
            autocompletion=options.complete_profile,
        ),
    ] = None,
    folders: Folders = None,
    json: options.Json = False,
) -> None:
    """Build the overlay that a start would build, without starting. Applies all patches, or none with exit code 5."""
    from gemmaspec.carry import apply as use_case
    from gemmaspec.cli.text import patch as text

    built = use_case.apply(tree, out, patches=patches or (), folders=folders or (), profile=profile)
    text.applied(built, as_json=json)


def release_day(
    release: Annotated[
        str | None,
        typer.Argument(
            metavar="[RELEASE]", help="vLLM release such as 0.34.0. [default: the newest]", show_default=False
        ),
    ] = None,
    tree: Annotated[Path | None, typer.Option("--tree", metavar="DIR", help="Folder that contains vllm/.")] = None,
    folders: Folders = None,
    json: options.Json = False,
) -> None:
    """Check the patches and the shipped profiles against a new vLLM release.

    Shows which patches break and can be rebased, and which are superseded; which flags, variables and keys were
    removed, and which of them the profiles use; and which profiles would still start.
    Exit code 5 if a shipped profile would not start.
    """
    from gemmaspec.carry import releaseday as use_case
    from gemmaspec.cli.text import patch as text

    day = use_case.release_day(release, tree=tree, folders=folders or ())
    raise typer.Exit(text.release_day(day, as_json=json))


def known(
    patches: PatchIds = None,
    folder: Annotated[
        Path | None,
        typer.Option("--patches", metavar="DIR", help="Folder of patches to use instead of the shipped ones."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 3 if a known.json is not up to date.")
    ] = False,
) -> None:
    """Write each patch's known.json: the sha256 of its files in every release, before and after."""
    from gemmaspec import data
    from gemmaspec.carry import known as use_case

    stale = use_case.write_known(folder or data.PATCHES, patches or (), check=check)
    for file in stale:
        output.progress(f"{'not up to date:' if check else 'wrote'} {file}")
    raise typer.Exit(3 if check and stale else 0)
