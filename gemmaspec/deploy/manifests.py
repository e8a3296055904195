"""`render --to`: a profile for a cluster, checked by whom the user names, then written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from gemmaspec.cluster.build import Manifests, build_manifests
from gemmaspec.cluster.schema import Schema, fits, read_schemas, violations
from gemmaspec.cluster.settings import Settings, To
from gemmaspec.cluster.text import yaml_text
from gemmaspec.deploy.lock import as_locked, by_lock
from gemmaspec.deploy.lockfile import lock_file
from gemmaspec.engine import kubectl
from gemmaspec.errors import GemmaspecError, UsageError
from gemmaspec.files import read_regular
from gemmaspec.profile.load import Loaded

CLUSTER: Final = "cluster"
"""What --validate names to ask the API server; anything else is a file with a schema."""
MAX_SCHEMA: Final = 16 * 1024 * 1024
"""Bytes of a schema; KServe's CustomResourceDefinition has 3 MB."""


def manifests(loaded: Loaded, to: To, settings: Settings, *, locked: bool, note: Callable[[str], None]) -> Manifests:
    """Render a profile for a cluster, with image and revisions as its lock pins them, if it has one.

    `locked` demands that nothing has moved since. Raises what as_locked and build_manifests raise.
    """
    pinned = as_locked(loaded, "docker") if locked else by_lock(loaded, "docker", note)
    if "@" in (pinned.profile.image or ""):
        note(f"image by digest, as {lock_file(loaded)} pins it" if pinned is not loaded else "image by digest")
    else:
        note(f"image by tag, which can move: gemmaspec lock {loaded.typed} --engine docker pins its digest")
    return build_manifests(pinned, to, settings)


def validate(rendered: Manifests, by: Sequence[str], *, namespace: str | None, note: Callable[[str], None]) -> None:
    """Have objects checked by the cluster, or by the schemas in files; note what passed.

    Raises GemmaspecError naming each object and field that is refused, UsageError for a file without a schema for any
    of them, EnvironmentMissing without a cluster to ask.
    """
    for one in by:
        if one == CLUSTER:
            said = kubectl.dry_run(yaml_text(list(rendered.objects.values())), namespace=namespace)
            note("\n".join(f"the cluster accepts {line}" for line in said.splitlines() if line.strip()))
        else:
            _validate_by_file(rendered, Path(one), note)


def _validate_by_file(rendered: Manifests, file: Path, note: Callable[[str], None]) -> None:
    content = read_regular(file, limit=MAX_SCHEMA, follow=True)
    if content is None:
        raise UsageError(f"missing file {file}", hint=f"--validate {CLUSTER}    # asks the cluster instead")
    try:
        schemas = read_schemas(content.decode("utf-8"), file=str(file))
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text") from None
    documents = {**rendered.objects, **({"values.yaml": rendered.values} if rendered.values else {})}
    pairs = [(name, one, schema) for name, one in documents.items() for schema in schemas if fits(schema, one)]
    if not pairs:
        raise UsageError(
            f"{file} has no schema for what is rendered; it is for {_known(schemas)}",
            hint=f"--validate {CLUSTER}    # asks the cluster, about every object",
        )
    found = [f"  {name}: {line}" for name, one, schema in pairs for line in violations(schema, one)]
    if found:
        raise GemmaspecError("\n".join([f"{file} does not allow:", *found]))
    note(f"{', '.join(name for name, _, _ in pairs)}: as {file} says")


def _known(schemas: Sequence[Schema]) -> str:
    return ", ".join(f"{one.api_version} {one.kind}" if one.kind else "Helm values" for one in schemas)
