"""`render --to kubernetes`: a profile for a cluster, checked by its API server if the user asks."""

from __future__ import annotations

from collections.abc import Callable

from gemmaspec.cluster.build import Manifests, build_manifests
from gemmaspec.cluster.settings import Settings
from gemmaspec.cluster.text import yaml_text
from gemmaspec.deploy.kept.lockfile import lock_file
from gemmaspec.deploy.start.lock import as_locked, by_lock
from gemmaspec.engine import kubectl
from gemmaspec.profile.load import Loaded


def manifests(loaded: Loaded, settings: Settings, *, locked: bool, note: Callable[[str], None]) -> Manifests:
    """Render a profile for a cluster, with image and revisions as its lock pins them, if it has one.

    `locked` demands that nothing has moved since. Raises what as_locked and build_manifests raise.
    """
    pinned = as_locked(loaded, "docker") if locked else by_lock(loaded, "docker", note)
    if "@" in (pinned.profile.image or ""):
        note(f"image by digest, as {lock_file(loaded)} pins it" if pinned is not loaded else "image by digest")
    else:
        note(f"image by tag, which can move: gemmaspec lock {loaded.typed} --engine docker pins its digest")
    return build_manifests(pinned, settings)


def validate(rendered: Manifests, *, namespace: str | None, note: Callable[[str], None]) -> None:
    """Have the API server check every object, and note what it accepts.

    Raises GemmaspecError naming each object and field that is refused, EnvironmentMissing without a cluster to ask.
    """
    said = kubectl.dry_run(yaml_text(list(rendered.objects.values())), namespace=namespace)
    note("\n".join(f"the cluster accepts {line}" for line in said.splitlines() if line.strip()))
