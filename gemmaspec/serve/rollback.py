"""`rollback`: start the last known good stack exactly as it was, without the network."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from gemmaspec.core.errors import DifferencesFound, EnvironmentMissing, GemmaspecError, UsageError
from gemmaspec.core.lock.document import LockedImage
from gemmaspec.core.profile.find import profile_names
from gemmaspec.run.engine.identity import image_identity
from gemmaspec.run.engine.proc import boot_id
from gemmaspec.run.kept import stacks
from gemmaspec.run.kept.models import ModelRef, digest_of
from gemmaspec.run.kept.stack_lock import StartProgress, Told, owned
from gemmaspec.run.trees.tree import UNKNOWN
from gemmaspec.run.trees.versions import interpreter_versions
from gemmaspec.serve import knowngood
from gemmaspec.serve.decide import UpRequest, decide_rollback
from gemmaspec.serve.knowngood import KnownGood
from gemmaspec.serve.observe import observe_models, observe_stack
from gemmaspec.serve.starting import Running, carry_out


def rollback(name: str, progress: StartProgress, *, to: str | None, timeout_s: float) -> Running:
    """Return to the newest known good stack that is not the current one, or to the one that `to` names.

    `to` is a number or an id. It is started as `up` starts one. Raises UsageError if there is no such stack,
    EnvironmentMissing if its image is gone and no registry has it, DifferencesFound if its runtime or a model's folder
    has changed; else as `up`.
    """
    _refuse_nodes(name)
    with owned(name, "rollback", note=progress.note) as owner:
        return restore(choose(name, to), Told(progress=progress, owner=owner), timeout_s=timeout_s)


def _refuse_nodes(name: str) -> None:
    """Raise UsageError for a server on several machines: only what it was on one machine is kept."""
    started = stacks.read_stack(name)
    if started and started.server.nodes:
        raise UsageError(
            f"{name} spans {len(started.server.nodes)} machines, and rollback knows servers of one machine only",
            hint=f"{started.options.command}    # with the profile as it was",
        )


def restore(good: KnownGood, told: Told, *, timeout_s: float, goes_back: bool = True) -> Running:
    """Start a known good stack again while the stack is locked.

    With `goes_back`, what ran until now runs again if this is interrupted or fails: this is itself no way back.
    """
    told.note(f"rolling back to {good.id}: vllm {good.facts.vllm}, plan {good.facts.plan[7:19]}")
    check_good(good)
    engine = stacks.engine_of(good.started)
    cache = good.started.hub_cache
    models = observe_models(_models(good), Path(cache) if cache else None)
    server = good.started.server
    start = decide_rollback(
        good,
        good.files(),
        before=observe_stack(server.name, told.note),
        models=tuple(models),
        command=engine.start_command(server),
        remote=engine.remote,
        now=stacks.now(),
        boot_id=boot_id(),
        goes_back=goes_back,
    )
    way_back = way_back_of(told, timeout_s=timeout_s)
    running = carry_out(start, engine, told, timeout_s=timeout_s, go_back=way_back)
    knowngood.renew(good, since=running.started.since)
    return running


def way_back_of(told: Told, *, timeout_s: float) -> Callable[[KnownGood], Running]:
    """Return what restarts a replaced stack, without the timeout that the new server may have exceeded."""
    return lambda good: restore(good, told, timeout_s=max(timeout_s, UpRequest.timeout_s), goes_back=False)


def check_good(good: KnownGood) -> None:
    """Raise EnvironmentMissing or DifferencesFound if a known good stack cannot run as it did."""
    if good.facts.image:
        _check_image(good.facts.image)
    _check_runtime(good)
    for model, locked in zip(_models(good), (good.facts.target, good.facts.draft), strict=False):
        if locked and locked.digest:
            _check_folder(model, locked.digest)


def kept(name: str) -> Sequence[KnownGood]:
    """Return the known good stacks of a name, newest first; none of one that was started and never became ready.

    Raises UsageError for a name under which nothing was started here.
    """
    goods = knowngood.known_goods(name)
    if not goods:
        try:
            stacks.find(name)
        except UsageError as error:
            raise error.amended(f"nothing is kept under {name!r}: {error.message}") from None
    return goods


def choose(name: str, to: str | None) -> KnownGood:
    """Return the stack to roll back to. Raises UsageError if there is none."""
    goods = kept(name)
    if to:
        matching = [good for good in goods if good.is_meant(to)]
    else:
        now = current(name)
        matching = [good for good in goods if good.key != now]
    if matching:
        return matching[0]
    known = ", ".join(good.id for good in goods) or "none"
    if to:
        wanted = f"with the number or id {to}"
    else:
        wanted = "other than the current one"
    raise UsageError(f"{name} has no known good stack {wanted} (known good: {known})", hint=_instead(name, goods))


def _instead(name: str, goods: Sequence[KnownGood]) -> str:
    """Return the command that helps where there is nothing to roll back to."""
    if goods:
        return f"gemmaspec rollback {name} --list"
    if name in profile_names():
        return f"gemmaspec up {name}"
    return "gemmaspec status"


def current(name: str) -> str | None:
    """Return the key of the last started stack, if it became ready."""
    with contextlib.suppress(GemmaspecError):
        started = stacks.find(name)
        if started.was_undone:
            return None
        return started.known_good
    return None


def only_name() -> str:
    """Return the only profile that can be rolled back. Raises UsageError if there is none or several."""
    names = knowngood.names()
    if len(names) == 1:
        return names[0]
    raise UsageError(f"name the stack to roll back: {', '.join(names) or 'no stack has ever been ready here'}")


def _models(good: KnownGood) -> list[ModelRef]:
    return [
        ModelRef(role=role, model=locked.model, revision=locked.revision)
        for role, locked in (("target", good.facts.target), ("draft", good.facts.draft))
        if locked
    ]


def _check_image(image: LockedImage) -> None:
    """Raise EnvironmentMissing if a locally built image is gone; one with a digest can be pulled again."""
    if image.digest is None and image.id and image_identity(image.id) is None:
        now = image_identity(image.name)
        raise EnvironmentMissing(
            f"the image of this stack, {image.id}, is no longer on this machine: {image.name} is "
            f"{now.id if now else 'also missing'}",
            hint="gemmaspec rollback --list    # then use --to N for another one",
        )


def _check_runtime(good: KnownGood) -> None:
    """Raise DifferencesFound if another release has been installed in the environment."""
    python = good.started.server.python
    if python is None or not python.is_file() or good.facts.versions is None:
        return  # an image's, or gone, which the engine says
    before, now = good.facts.versions.model_dump(), interpreter_versions(python, good.started.server.environment)
    for name, version in now.items():
        # The build after the plus is in some statements of a version and not in others.
        if version != UNKNOWN and version.partition("+")[0] != before[name].partition("+")[0]:
            raise DifferencesFound(
                f"{python} has changed: {name} was {before[name]}, is {version}",
                hint=f"{python} -m pip install {name}=={before[name]}",
            )


def _check_folder(model: ModelRef, locked: str) -> None:
    """Raise DifferencesFound if the content of a model's folder has changed."""
    now = digest_of(model)
    if now != locked:
        raise DifferencesFound(
            f"{model.role}.model: {model.folder} has changed: was {locked}, is {now}",
            hint="gemmaspec rollback --list    # then use --to N for another one",
        )
