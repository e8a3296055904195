"""`pull`: fetch everything that a profile runs, so that `up` needs no network."""

from __future__ import annotations

import concurrent.futures
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from gemmaspec.core.errors import EnvironmentMissing, Interrupted, UsageError
from gemmaspec.core.profile.engines import uses_image
from gemmaspec.core.profile.load import Loaded, load_profile
from gemmaspec.run.engine import image_size, pulling
from gemmaspec.run.engine.choose import choose_engine
from gemmaspec.run.engine.pulling import not_pulled_here
from gemmaspec.run.engine.server import Engine, EngineName
from gemmaspec.run.kept.models import ModelRef, check_folder, hub_cache, models_of
from gemmaspec.run.models.download import Cache, CommitFiles, RemoteFile, list_files
from gemmaspec.run.runtime.managed import describe, ensure_runtime
from gemmaspec.run.runtime.spec import RuntimeSpec
from gemmaspec.serve import lock
from gemmaspec.serve.prepare import runtime_spec

WORKERS: Final = 6
"""Transfers at a time."""


@dataclass(frozen=True, kw_only=True)
class PullPart:
    """One thing that a profile runs."""

    role: str
    """`image`, `runtime`, `target` or `draft`."""
    name: str
    revision: str | None = None
    """The commit of a model of the Hub."""
    to_fetch: int | None = 0
    """Bytes that were downloaded; None if unknown."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Something to fetch, as one task of its own."""

    part: PullPart
    run: Callable[[Callable[[int], None]], None]


class PullProgress(Protocol):
    """Receives the progress of a pull, from several threads."""

    def note(self, text: str) -> None:
        """Report one sentence."""

    def begin(self, role: str, name: str, total: int | None) -> None:
        """Begin a part of `total` bytes; None if unknown."""

    def advance(self, role: str, count: int) -> None:
        """Report that many more bytes."""

    def end(self, role: str) -> None:
        """End the part."""


def pull(
    profile: str, *, engine: EngineName | None, latest: bool, overrides: Sequence[str], progress: PullProgress
) -> tuple[PullPart, ...]:
    """Fetch image (or runtime), target and draft together; at their locked revisions, unless `latest`.

    Raises EnvironmentMissing before anything is fetched for a model that is gated or missing and for a disk that is
    too small; later for an interrupted transfer, which the same command continues.
    """
    loaded = load_profile(profile, overrides=overrides)
    chosen, why = choose_engine(engine, profile=loaded.profile)
    progress.note(f"engine {why}")
    if not latest:
        loaded = lock.for_pull(loaded, chosen.name, progress.note)
    cache = Cache(hub_cache(loaded.profile))
    listings = [
        list_files(ref.model, ref.revision, role=ref.role) for ref in _of_the_hub(loaded, chosen, progress.note)
    ]
    first = (_image_job if uses_image(chosen.name) else _runtime_job)(loaded, progress.note)
    parts = [_part(listing, cache) for listing in listings]
    _check_disks(chosen, first.part, cache, sum(part.to_fetch or 0 for part in parts), progress.note)
    jobs = [first] if first.part.to_fetch != 0 else []
    for listing, part in zip(listings, parts, strict=True):
        jobs += _jobs(listing, part, cache)
    _run(jobs, progress)
    for listing in listings:
        cache.name_commit(listing)
    return (first.part, *parts)


def _of_the_hub(loaded: Loaded, engine: Engine, note: Callable[[str], None]) -> Iterator[ModelRef]:
    """Yield the models to fetch, each once. Raises UsageError if the server would look for them elsewhere."""
    seen = set()
    for ref in models_of(loaded.profile):
        if ref.is_tiny:
            note(f"{ref.role}: {ref.model} ships with gemmaspec")
        elif ref.local:
            check_folder(ref)
            note(f"{ref.role}: {ref.folder} is a folder on this machine")
        elif (ref.model, ref.revision) not in seen:
            _refuse_elsewhere(loaded, engine, ref)
            seen.add((ref.model, ref.revision))
            yield ref


def _refuse_elsewhere(loaded: Loaded, engine: Engine, ref: ModelRef) -> None:
    if engine.remote:
        raise UsageError(f"the docker daemon runs on another machine, where the server will fetch {ref.model} itself")
    if uses_image(engine.name) and not loaded.profile.caches.huggingface:
        raise UsageError(
            f"{loaded.place('caches')}: caches.huggingface is not set, so the container keeps {ref.model} in its own "
            "volume, which only the container can fill",
            hint="set `caches: {huggingface: ~/.cache/huggingface}` in the profile",
        )


def _part(listing: CommitFiles, cache: Cache) -> PullPart:
    rest = sum(cache.rest(listing, file) for file in cache.missing(listing))
    return PullPart(role=listing.role, name=listing.model, revision=listing.commit, to_fetch=rest)


def _jobs(listing: CommitFiles, part: PullPart, cache: Cache) -> Iterator[Job]:
    """Yield a job for each file, largest first, so that no large one is left alone at the end."""
    for file in sorted(cache.missing(listing), key=lambda file: -file.size):
        yield Job(part=part, run=_fetcher(cache, listing, file))


def _fetcher(cache: Cache, listing: CommitFiles, file: RemoteFile) -> Callable[[Callable[[int], None]], None]:
    return lambda on_bytes: cache.fetch(listing, file, on_bytes)


def _image_job(loaded: Loaded, note: Callable[[str], None]) -> Job:
    image = loaded.profile.image
    if not image:
        raise UsageError(f"{loaded.file}: image: missing, but the docker engine needs it")
    if pulling.is_here(image):
        return Job(part=PullPart(role="image", name=image), run=lambda _: None)
    if missing := not_pulled_here(image):
        raise missing
    size = image_size.download_bytes(image)
    if size is None:
        note(f"image: the registry does not say how large {image} is")
    return Job(
        part=PullPart(role="image", name=image, to_fetch=size), run=lambda on_bytes: pulling.pull(image, on_bytes)
    )


def _runtime_job(loaded: Loaded, note: Callable[[str], None]) -> Job:
    interpreter = loaded.profile.runtime.python
    if interpreter:
        return Job(part=PullPart(role="runtime", name=interpreter), run=lambda _: None)
    spec = runtime_spec(loaded)
    size = 0 if describe(spec).complete else None
    return Job(part=PullPart(role="runtime", name=spec.key, to_fetch=size), run=lambda _: _build(spec, note))


def _build(spec: RuntimeSpec, note: Callable[[str], None]) -> None:
    ensure_runtime(spec, progress=note)


def _check_disks(engine: Engine, first: PullPart, cache: Cache, models: int, note: Callable[[str], None]) -> None:
    """Raise EnvironmentMissing for a disk that is too small; disks that are not visible from here are noted."""
    needed: dict[Path, int] = {}
    _need(needed, cache.folder, models)
    if first.role == "image" and first.to_fetch != 0:
        root = engine.data_root()
        if root is None:
            note("image: docker's disk is not visible from here, so its free space is unknown")
        else:
            _need(needed, root, first.to_fetch or 0)  # at least: unpacked, an image is larger
    for mount, size in needed.items():
        free = shutil.disk_usage(mount).free
        if size > free:
            raise EnvironmentMissing(
                f"the disk of {mount} has {free / 1e9:.1f} GB free, and {size / 1e9:.1f} GB must be downloaded to it",
                hint=f"df -h {mount}",
            )


def _need(needed: dict[Path, int], folder: Path, size: int) -> None:
    """Add to the bytes needed on a folder's disk, which is identified by one of its folders."""
    there = next(above for above in (folder.absolute(), *folder.absolute().parents) if above.exists())
    same = next((folder for folder in needed if folder.stat().st_dev == there.stat().st_dev), there)
    needed[same] = needed.get(same, 0) + size


def _run(jobs: Sequence[Job], progress: PullProgress) -> None:
    """Run all jobs concurrently; the first failure or Ctrl-C ends the others at their next bytes."""
    left = Counter(job.part for job in jobs)
    for part in left:
        progress.begin(part.role, part.name, part.to_fetch)
    stopped = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(WORKERS, thread_name_prefix="gemmaspec-pull") as pool:
        try:
            futures = {pool.submit(job.run, _teller(job.part.role, progress, stopped)): job.part for job in jobs}
            for future in concurrent.futures.as_completed(futures):
                future.result()
                left[futures[future]] -= 1
                if not left[futures[future]]:
                    progress.end(futures[future].role)
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _teller(role: str, progress: PullProgress, stopped: threading.Event) -> Callable[[int], None]:
    def tell(count: int) -> None:
        if stopped.is_set():
            raise Interrupted("stopped, because another part failed")
        progress.advance(role, count)

    return tell
