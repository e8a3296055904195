"""`gemmaspec render`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmaspec.cli import options, output
from gemmaspec.core.errors import UsageError
from gemmaspec.run.cluster.server import ClusterSettings

if TYPE_CHECKING:
    from gemmaspec.core.profile.load import Loaded
    from gemmaspec.run.cluster.build import Manifests
    from gemmaspec.run.stack.folder import Rendered

_COMPOSE = "compose"
_KUBERNETES = "kubernetes"
_CLUSTER = "cluster"
_TARGETS = (_COMPOSE, _KUBERNETES)
_DEFAULTS = ClusterSettings()


def render(
    profile: options.Profile,
    out: options.OutFolder = None,
    check: Annotated[bool, options.option("--check", of="render")] = False,
    single_file: Annotated[bool, options.option("--single-file")] = False,
    to: Annotated[
        str, options.option("--to", metavar="|".join(_TARGETS), autocompletion=lambda: list(_TARGETS))
    ] = _COMPOSE,
    validate: Annotated[str | None, options.option("--validate", metavar=_CLUSTER)] = None,
    replicas: Annotated[int | None, options.option("--replicas")] = None,
    storage: Annotated[str, options.option("--storage")] = _DEFAULTS.storage,
    runtime_class: Annotated[str, options.option("--runtime-class")] = str(_DEFAULTS.runtime_class),
    secret: Annotated[str | None, options.option("--secret")] = None,
    namespace: options.Namespace = None,
    set_: options.Set = None,
    no_spec: options.NoSpec = False,
    no_speed_patches: options.NoSpeedPatches = False,
    locked: options.Locked = False,
    force: Annotated[bool, options.option("--force", of="render")] = False,
    json: options.Json = False,
) -> None:
    """Write a profile's stack: compose.yaml, plan, launcher, speculative config, chat template.

    With --to it writes YAML for a cluster, and a kustomization.yaml. gemmaspec deploys to no cluster: kubectl does, or
    what you use for GitOps.
    """
    from gemmaspec.check.use_cases.lint import stop_on_errors
    from gemmaspec.core.profile.load import load_profile
    from gemmaspec.run.kept.lockfile import release_of

    overrides = options.overrides_of(set_, no_speed_patches=no_speed_patches)
    loaded = load_profile(profile, overrides=overrides, no_spec=no_spec)
    stop_on_errors(loaded, output.progress, release=release_of(loaded))
    if to == _COMPOSE:
        _refuse_replicas(loaded)
        given = {"replicas": replicas, "storage": storage, "runtime_class": runtime_class, "secret": secret}
        _refuse_for_compose({**given, "namespace": namespace, "validate": validate}, profile)
        made: Rendered = _stack(loaded, single_file=single_file, locked=locked)
        out = out or Path(loaded.profile.name)
        follow = [f"next: docker compose -f {out}/compose.yaml up"]
        script = _script(loaded)
    else:
        if single_file:
            raise UsageError("--single-file is for a Compose stack", hint=f"gemmaspec render {profile} --single-file")
        _refuse_words(to, validate)
        settings = ClusterSettings(
            **options.given(storage=storage, secret=secret, namespace=namespace),
            replicas=loaded.profile.replicas if replicas is None else replicas,
            runtime_class=None if runtime_class == "none" else runtime_class,
        )
        manifests = _manifests(loaded, settings, locked=locked, validate=bool(validate))
        out, made = out or Path(f"{loaded.profile.name}-{to}"), manifests
        follow = _next(manifests, out)
        script = None
    _write(loaded, made, out, check=check, force=force, json=json, follow=follow, script=script)


def _script(loaded: Loaded) -> str:
    from gemmaspec.run.stack.script import start_script

    return start_script(loaded)


def _refuse_words(to: str, validate: str | None) -> None:
    """Raise UsageError for a target or a validator that there is not."""
    if to != _KUBERNETES:
        meant = next((target for target in _TARGETS if target in to), _KUBERNETES)
        hint = f"gemmaspec render PROFILE --to {meant}"
        raise UsageError(f"--to must be one of {', '.join(_TARGETS)}, not {to!r}", hint=hint)
    if validate not in (None, _CLUSTER):
        raise UsageError(f"--validate must be {_CLUSTER}, not {validate!r}")


def _refuse_replicas(loaded: Loaded) -> None:
    """Raise UsageError for a profile that is more than one stack."""
    if loaded.profile.replicas > 1:
        raise UsageError(
            f"{loaded.profile.name} has replicas: each is a stack of its own, and `up` starts their router",
            hint=f"gemmaspec up {loaded.typed}    # or render {loaded.typed} --to kubernetes",
        )


def _refuse_for_compose(given: dict[str, Any], profile: str) -> None:
    """Raise UsageError for an option that only a cluster has."""
    for name, value in given.items():
        if value not in (None, getattr(_DEFAULTS, name, None)):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is for a cluster", hint=f"gemmaspec render {profile} --to kubernetes")


def _stack(loaded: Loaded, *, single_file: bool, locked: bool) -> Rendered:
    from gemmaspec.run.stack.build import build_stack

    if locked:
        from gemmaspec.run.kept.lockfile import lock_of
        from gemmaspec.serve.lock import as_locked

        loaded = as_locked(loaded, "docker", lock_of(loaded))
    return build_stack(loaded, form="single-file" if single_file else "folder")


def _manifests(loaded: Loaded, settings: ClusterSettings, *, locked: bool, validate: bool) -> Manifests:
    from gemmaspec.serve.render import manifests
    from gemmaspec.serve.render import validate as validate_all

    made = manifests(loaded, settings, locked=locked, note=output.progress)
    if validate:
        validate_all(made, namespace=settings.namespace, note=output.progress)
    return made


def _write(
    loaded: Loaded,
    made: Rendered,
    out: Path,
    *,
    check: bool,
    force: bool,
    json: bool,
    follow: Sequence[str],
    script: str | None,
) -> None:
    """Write what was rendered, or with `check` only compare it with what is there."""
    from gemmaspec.run.stack import folder
    from gemmaspec.serve.render import render as write

    if check:
        difference = folder.difference(made, out)
        if difference and not json:
            output.data(difference)
        if json:
            output.json_data({"ok": not difference, "folder": str(out), "difference": difference})
        raise typer.Exit(3 if difference else 0)
    written = write(loaded, made, out, force=force)
    if json:
        started_by = {"script": script} if script else {}
        output.json_data({"ok": True, "folder": str(out), "files": written, **started_by})
        return
    output.progress(f"wrote {', '.join(written)} to {out}/")
    for line in follow:
        output.progress(f"  {line}")


def _next(made: Manifests, out: Path) -> list[str]:
    """Return what is to be done before the start, and the command that brings the objects to the cluster."""
    server = made.server
    steps = []
    for role in server.local_models:
        steps.append(f"the {role} is a folder: copy it to models/{role} of the volume {server.name} before the start")
    return [*steps, f"next: kubectl apply --server-side -k {out}"]
