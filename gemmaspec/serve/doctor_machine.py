"""The doctor's checks of the machine: models, disks, port, clock and limits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gemmaspec.check.doctor.machine import clock_row, container_shm_row, disk_row, open_files_row, shm_row
from gemmaspec.check.doctor.result import CheckResult, failed, ok, skipped, warning
from gemmaspec.core.errors import GemmaspecError, ProfileError
from gemmaspec.core.files import state_dir
from gemmaspec.run.engine import port as ports
from gemmaspec.run.engine import pulling
from gemmaspec.run.engine.docker import DockerEngine
from gemmaspec.run.kept.models import ModelRef, check_folder, hub_cache, models_of
from gemmaspec.run.machine import readings, timekeeping
from gemmaspec.run.models import access
from gemmaspec.run.models.download import Cache, list_files
from gemmaspec.run.models.hub import Unreachable
from gemmaspec.serve.doctor_subject import DoctorSubject
from gemmaspec.serve.start_costs import image_bytes


def models(subject: DoctorSubject) -> Iterator[CheckResult]:
    """Check whether target and draft are on this machine or can be fetched."""
    for ref in models_of(subject.loaded.profile) if subject.loaded else ():
        if ref.local:
            yield _folder(ref)
        else:
            yield _of_the_hub(subject, ref)


def _folder(ref: ModelRef) -> CheckResult:
    if ref.is_tiny and not ref.is_here:
        return ok(ref.role, f"{ref.model} ships with gemmaspec; `up` copies it")
    try:
        check_folder(ref)
    except GemmaspecError as error:
        return failed(ref.role, error.message, f"ls {ref.folder}")
    return ok(ref.role, f"{ref.folder} exists")


def _of_the_hub(subject: DoctorSubject, ref: ModelRef) -> CheckResult:
    assert subject.loaded
    folder = hub_cache(subject.loaded.profile)
    try:
        if subject.silent_hub:
            raise _about(ref, *subject.silent_hub)
        if access.is_offline():
            raise Unreachable("HF_HUB_OFFLINE is set", hint="unset HF_HUB_OFFLINE")
        listing = list_files(ref.model, ref.revision, role=ref.role)
    except Unreachable as error:
        silent = Unreachable(error.message.removeprefix(f"{ref.role}.model: "), hint=error.hint)
        subject.silent_hub = subject.silent_hub or (ref.model, silent)
        return _without_the_hub(subject, ref, silent)
    except GemmaspecError as error:
        return failed(ref.role, error.message, error.hint or f"gemmaspec profile show {subject.loaded.typed}")
    cache = Cache(folder)
    rest = sum(cache.rest(listing, file) for file in cache.missing(listing))
    subject.to_fetch[ref.role] = rest
    shown = f"{ref.model} at {listing.commit}"
    if not cache.missing(listing):
        return ok(ref.role, f"{shown} is in the cache")
    return warning(ref.role, f"{shown}: {rest / 1e9:.2f} GB to download", f"gemmaspec pull {subject.loaded.typed}")


def _about(ref: ModelRef, asked: str, error: Unreachable) -> Unreachable:
    """Return the error of the model that was `asked` about, as that of another one."""
    hint = error.hint and error.hint.replace(asked, ref.model)
    return Unreachable(error.message.replace(asked, ref.model), hint=hint)


def _without_the_hub(subject: DoctorSubject, ref: ModelRef, error: Unreachable) -> CheckResult:
    """Return what the cache and the shapes that ship say of a model, where the Hub cannot be asked."""
    assert subject.loaded
    folder = hub_cache(subject.loaded.profile)
    cached = access.cached_commit(ref.model, ref.revision, cache=folder)
    if cached and access.is_whole(ref.model, ref.revision, cache=folder):
        subject.to_fetch[ref.role] = 0
        return ok(ref.role, f"{ref.model} at {cached} is in the cache, with all weights; the Hub was not asked")
    if cached:
        return warning(ref.role, f"{error.message}; the cache has {ref.model} at {cached}, not all of it", error.hint)
    from gemmaspec.core.checkpoint.published.shipped import shipped_checkpoint

    known, says = shipped_checkpoint(ref.model), f"{error.message}, and it is not in the cache"
    if known:
        subject.to_fetch[ref.role] = size = known.nbytes
        says += f"; {size / 1e9:.2f} GB to fetch, computed from shapes that ship with gemmaspec"
    return failed(ref.role, says, error.hint)


def disks(subject: DoctorSubject) -> Iterator[CheckResult]:
    """Check the disk space for stacks and runtimes, for models, and for docker's images, which may be one disk."""
    if subject.profile:
        cache = Cache(hub_cache(subject.profile))
    else:
        cache = Cache(None)
    if subject.to_fetch:
        models = sum(subject.to_fetch.values())
    else:
        models = None
    if subject.docker and subject.docker_answers:
        docker = subject.docker
    else:
        docker = None
    root = _docker_root(docker) if docker else None
    image = _image_to_fetch(subject) if docker else None
    needs = {cache.folder: models or 0, **({root: image or 0} if root else {})}
    yield disk_row("disk, state", str(state_dir()), readings.free_bytes(state_dir()), None)
    if models is not None:
        needed = together(needs, cache.folder)
    else:
        needed = None
    yield disk_row("disk, models", str(cache.folder), readings.free_bytes(cache.folder), needed)
    if docker:
        if root and image is not None:
            needed = together(needs, root)
        else:
            needed = None
        yield disk_row("disk, docker", str(root or "docker's folder"), readings.free_bytes(root), needed)


def together(needs: Mapping[Path, int], folder: Path, disk_of: Callable[[Path], int | None] = readings.disk_of) -> int:
    """Return the bytes that the disk of a folder must hold of all that is needed."""
    disk = disk_of(folder)
    return sum(size for other, size in needs.items() if other == folder or disk_of(other) == disk)


def _image_to_fetch(subject: DoctorSubject) -> int | None:
    """Return the bytes of the profile's image that must still be fetched; unpacked it needs more. None: not known."""
    image = subject.profile.image if subject.profile else None
    if not image:
        return None
    with contextlib.suppress(GemmaspecError):
        if pulling.is_here(image):
            return 0
        size, estimate = image_bytes(image)
        return size or estimate
    return None


def _docker_root(engine: DockerEngine) -> Path | None:
    try:
        return engine.data_root()
    except GemmaspecError:
        return None  # its own row says that docker does not answer


def port(subject: DoctorSubject) -> Iterator[CheckResult]:
    """Check whether the port is free or used by this stack."""
    try:
        server = subject.server
    except ProfileError:
        yield skipped("port", "not checked, because the engine cannot run this profile")
        return
    if server is None:
        return
    if subject.runs_now:
        yield ok("port", f"{server.port} is in use by {server.name} itself")
        return
    if subject.docker and subject.docker_answers:
        subject.docker.ensure_port(server)
    else:
        ports.ensure_free(server.bind, server.port)
    yield ok("port", f"{server.port} on {server.bind} is free")


def clock(_: DoctorSubject) -> Iterator[CheckResult]:
    """Check whether this machine's clock is right."""
    yield clock_row(timekeeping.clock())


def limits(subject: DoctorSubject) -> Iterator[CheckResult]:
    """Check the limits of open files and shared memory where the server will run."""
    if not subject.uses_docker:
        yield open_files_row(readings.hard_open_files())
        shared = Path("/dev/shm")  # noqa: S108 - only inspected
        yield shm_row(readings.free_bytes(shared) if shared.is_dir() else None)
        return
    yield skipped("open files", "containers use the docker daemon's limit")
    if subject.profile:
        yield container_shm_row(subject.profile.container.shm_size, subject.profile.container.ipc)
