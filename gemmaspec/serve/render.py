"""`render`: a stack is written without losing any of the user's files; objects of a cluster are built and checked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.load import Loaded
from gemmaspec.run.cluster.build import Manifests, build_manifests
from gemmaspec.run.cluster.server import ClusterSettings
from gemmaspec.run.cluster.text import yaml_text
from gemmaspec.run.engine import kubectl
from gemmaspec.run.kept.lockfile import lock_file, lock_of
from gemmaspec.run.kept.stack_lock import owned
from gemmaspec.run.kept.stacks import stack_folder
from gemmaspec.run.stack import folder as stack_files
from gemmaspec.run.stack.folder import Rendered
from gemmaspec.serve.lock import as_locked, by_lock


def render(loaded: Loaded, stack: Rendered, out: Path, *, force: bool = False) -> list[str]:
    """Write the stack into `out` and return the names of its files.

    Unless `force`, raises UsageError for files that gemmaspec did not write or that were changed since. Raises
    EnvironmentMissing for a file that cannot be written, GemmaspecError if another command has locked the folder.
    """
    name = loaded.profile.name
    in_state = out.absolute() == stack_folder(name)
    with owned(name, "render") if in_state else contextlib.nullcontext():
        if not force and (strange := stack_files.strangers(stack, out)):
            raise UsageError(
                f"gemmaspec did not write {', '.join(map(str, strange))}, or it was changed since. Nothing was written",
                hint=f"gemmaspec render {loaded.typed} --out {out} --force    # overwrites or removes it",
            )
        return stack_files.write(stack, out)


def manifests(loaded: Loaded, settings: ClusterSettings, *, locked: bool, note: Callable[[str], None]) -> Manifests:
    """Render a profile for a cluster, with image and revisions as its lock pins them, if it has one.

    `locked` demands that nothing has moved since. Raises what as_locked and build_manifests raise.
    """
    if locked:
        pinned = as_locked(loaded, "docker", lock_of(loaded))
    else:
        pinned = by_lock(loaded, "docker", note)
    if "@" in (pinned.profile.image or ""):
        note(f"image by digest, as {lock_file(loaded)} pins it" if pinned is not loaded else "image by digest")
    else:
        note(f"the image's tag can move; gemmaspec lock {loaded.typed} --engine docker pins its digest")
    return build_manifests(pinned, settings)


def validate(rendered: Manifests, *, namespace: str | None, note: Callable[[str], None]) -> None:
    """Have the API server check every object, and note what it accepts.

    Raises GemmaspecError naming each object and field that is refused, EnvironmentMissing without a cluster to ask.
    """
    accepted = kubectl.dry_run(yaml_text(list(rendered.objects.values())), namespace=namespace)
    note("\n".join(f"the cluster accepts {line}" for line in accepted.splitlines() if line.strip()))
