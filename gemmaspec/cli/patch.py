"""`gemmaspec patch list|show|explain|verify|apply|known`, and the group of all commands about patches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemmaspec.cli import help as help_
from gemmaspec.cli import options, output, patch_carry

Refresh = Annotated[bool, options.option("--refresh")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    from gemmaspec.cli import patch_measure, patch_prove

    group = help_.group("patch")
    group.command("list")(list_)
    for command in (show, explain, verify, apply, known):
        group.command(command.__name__)(command)
    patch_carry.add_to(group)
    patch_prove.add_to(group)
    patch_measure.add_to(group)
    app.add_typer(group, name="patch")


def list_(folders: options.PatchFolders = None, json: options.Json = False) -> None:
    """List the patches with their releases and the shipped profiles that need them."""
    from gemmaspec.check.carry.patchset import load_set
    from gemmaspec.cli.text import patch as text

    patches = load_set((), folders or ())
    text.listing(patches, as_json=json)


def show(patch: options.PatchId, folders: options.PatchFolders = None, json: options.Json = False) -> None:
    """Print a patch: its metadata and its diffs."""
    from gemmaspec.check.carry.patchset import load_set
    from gemmaspec.cli.text import patch as text

    text.show(load_set((patch,), folders or ()), patch, as_json=json)


def explain(patch: options.PatchId, folders: options.PatchFolders = None, json: options.Json = False) -> None:
    """Explain a patch: the bug, the error without it, where it is, what upstream says, who needs it."""
    from gemmaspec.check.carry.patchset import load_set
    from gemmaspec.cli.text import patch as text

    text.explain(load_set((patch,), folders or ()), patch, as_json=json)


def verify(
    patches: options.PatchIds = None,
    releases: options.Releases = None,
    all_releases: Annotated[bool, options.option("--all-releases", of="patch")] = False,
    images: Annotated[list[str] | None, options.option("--image")] = None,
    trees: Annotated[list[Path] | None, options.option("--tree", of="patch")] = None,
    running: Annotated[list[str] | None, options.option("--server", autocompletion=options.complete_stack)] = None,
    folders: options.PatchFolders = None,
    strict: Annotated[bool, options.option("--strict", of="patch")] = False,
    by_behaviour: Annotated[bool, options.option("--by-behaviour")] = False,
    refresh: Refresh = False,
    json: options.Json = False,
) -> None:
    """Check whether each patch applies, without a GPU and without downloading vLLM.

    By default checks all releases that the patches claim, and those images of the shipped profiles that are on this
    machine. Exit code 5 if a required patch does not apply, 4 if a tree cannot be read; with --strict, 3 if one applies
    to a function that no known release has.
    """
    from gemmaspec.check.carry import verify as use_case
    from gemmaspec.cli.text import patch as text
    from gemmaspec.cli.text import verify as verify_of

    request = use_case.VerifyRequest(
        **options.given(
            patches=patches,
            folders=folders,
            releases=releases,
            all_releases=all_releases,
            images=images,
            trees=trees,
            running=running,
            strict=strict,
            by_behaviour=by_behaviour,
            refresh=refresh,
        )
    )
    with text.tree_progress() as progress:
        outcome = use_case.verify(request, progress, output.progress)
    raise typer.Exit(verify_of.verified(outcome, strict=request.strict, as_json=json))


def apply(
    tree: Annotated[Path, options.option("--tree", of="apply")],
    out: Annotated[Path, options.option("--out", "-o", of="patch")],
    patches: options.PatchIds = None,
    profile: Annotated[str | None, options.option("--profile", autocompletion=options.complete_profile)] = None,
    folders: options.PatchFolders = None,
    json: options.Json = False,
) -> None:
    """Build the overlay that a start would build, without starting. Applies all patches, or none with exit code 5."""
    from gemmaspec.check.carry import apply as use_case
    from gemmaspec.cli.text import patch as text

    built = use_case.apply(tree, out, patches=patches or (), folders=folders or (), profile=profile)
    text.applied(built, as_json=json)


def known(
    patches: options.PatchIds = None,
    folder: options.PatchFolder = None,
    check: Annotated[bool, options.option("--check", of="patch")] = False,
) -> None:
    """Write each patch's known.json: the sha256 of its files in every release, before and after."""
    from gemmaspec.check.carry import known as use_case
    from gemmaspec.core import data

    stale = use_case.write_known(folder or data.PATCHES, patches or (), check=check)
    for file in stale:
        output.progress(f"{'not up to date:' if check else 'wrote'} {file}")
    raise typer.Exit(3 if check and stale else 0)
