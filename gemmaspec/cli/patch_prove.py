"""`gemmaspec patch prove`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmaspec.cli import options, output

if TYPE_CHECKING:
    from gemmaspec.check.proof.prove import Proof
    from gemmaspec.core.patching.patch import Patch


def add_to(group: typer.Typer) -> None:
    """Register the command in the group `patch`."""
    group.command("prove")(prove)


def prove(
    patches: options.PatchIds = None,
    release: options.Releases = None,
    all_releases: Annotated[bool, options.option("--all-releases", of="prove")] = False,
    tree: Annotated[list[Path] | None, options.option("--tree", of="prove")] = None,
    folders: options.PatchFolders = None,
    json: options.Json = False,
) -> None:
    """Prove that patches work: a probe finds the bug in vLLM as released, and no longer finds it once patched.

    Runs vLLM's own modules on this machine's CPU, without a GPU. Exit code 1 if a patch is not proven. With --tree, a
    patch that does not apply there is closed if the probe finds no bug, and open (exit code 1) if it does.
    """
    from itertools import chain

    from gemmaspec.check.carry.patchset import load_set
    from gemmaspec.check.proof.behaviour import prove_folder
    from gemmaspec.check.proof.environment import prove_python, triton_folder
    from gemmaspec.check.proof.prove import Probes, need_probes, prove

    chosen = load_set(patches or (), folders or ())
    for error in chosen.refused.values():
        raise error
    wanted = [chosen.every[name] for name in chosen.judges]
    need_probes(wanted)
    if tree and not release:
        releases = []
    else:
        releases = _releases(wanted, release or (), every=all_releases)
    proofs, python = [], prove_python(progress=output.progress)
    with Probes(python, lambda: triton_folder(python, progress=output.progress)) as probes:
        on_trees = (proof for folder in tree or () for proof in prove_folder(wanted, chosen.every, folder, probes))
        for proof in chain(prove(wanted, chosen.every, releases, probes, output.progress), on_trees):
            proofs.append(proof)
            _tell(proof)
    if json:
        rows = [{"ok": proof.holds, **vars(proof)} for proof in proofs]
        output.json_data({"ok": all(proof.holds for proof in proofs), "results": rows})
    raise typer.Exit(0 if all(proof.holds for proof in proofs) else 1)


def _releases(patches: Sequence[Patch], texts: Sequence[str], *, every: bool) -> list[str]:
    """Return the releases named; by default those that the patches claim, all of them or the ends of each range."""
    from gemmaspec.check.proof.prove import ends_of_ranges
    from gemmaspec.core import launcher
    from gemmaspec.run.trees import listing as listing_of

    listing = listing_of.published()
    if texts:
        return listing_of.choose(texts, listing)[1]
    published = [release for release in listing.releases() if launcher.PUBLISHED_RELEASE.fullmatch(release)]
    claimed = []
    for release in published:
        if any(patch.claims(release) for patch in patches):
            claimed.append(release)
    if every:
        return claimed
    return ends_of_ranges(patches, claimed)


def _tell(proof: Proof) -> None:
    output.progress(f"  {proof.patch}: {proof.outcome}" + (f" ({proof.detail})" if proof.detail else ""))
