"""What a start downloads and builds, and how long it takes: by earlier starts on this machine, else by size."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from gemmaspec.core import records
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError
from gemmaspec.core.files import state_dir
from gemmaspec.core.profile.machines import MACHINES, machine_kind
from gemmaspec.core.sentences import duration, readable_size
from gemmaspec.run.kept.attention import graphs_ahead
from gemmaspec.run.machine import nvidia
from gemmaspec.run.runtime.managed import earlier_builds, needed_bytes
from gemmaspec.run.runtime.released import ensure_released

if TYPE_CHECKING:
    from gemmaspec.run.kept.models import ModelRef
    from gemmaspec.run.ready.phases import Phase
    from gemmaspec.serve.decide import Start

_SLOW: Final = 100e6 / 8
_FAST: Final = 1e9 / 8
"""Bytes per second of two usual connections."""
_OFFICIAL: Final = "vllm/vllm-openai:"
_OFFICIAL_BYTES: Final = 10_500_000_000
"""Images whose size is known by and large (published for that of April 2026), where no registry says it."""
_BUILDS: Final = {
    "cpu": "took 1 to 4 minutes on two cores elsewhere, most of it the download",
    "cuda": "some minutes, most of it the download",
}
"""How long building a runtime takes before this machine has built one: 98 s with pip's cache warm, 215 s without it on
two busy cores."""
_TOY: Final = "half a minute to 4 minutes to start, as measured on two cores, idle and busy (27 s and 257 s)"
_COMPILING: Final = {
    "dgx-spark": ": 5 to 13 min in all were published, later ones 2 min",
    "h100": ": 7 min in all were measured, over a minute of it without a line, while kernels are built; later ones 3",
}
"""How long a first start of a 31B takes, by machine. Spark: sovgrid (306 s) and AEON-7 (13 min, 2 min warm). H100 with
0.32.0, 403 to 413 s: importing 91, compiling 243 (Dynamo 34, Inductor 60, saving 23, the first run with its kernels 85,
the draft 12, a trial capture 25), capturing 15, warming up 46."""
_DISK: Final = 1e9
"""Bytes per second that a usual disk reads."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One thing that is not on this machine, or may not be."""

    verb: Literal["download", "build", "copy"]
    what: str
    """`image`, `runtime`, `target` or `draft`."""
    name: str
    nbytes: int | None = None
    """The download's size; None if unknown."""
    seconds: float | None = None
    """How long it took here before."""
    note: str = ""
    estimate: int | None = None
    """What a download of unknown size is counted as; None where nobody can say."""

    def __str__(self) -> str:
        if self.verb == "download" and not self.note:
            unknown = "of unknown size"
        else:
            unknown = ""
        if self.nbytes:
            shown = readable_size(self.nbytes)
        else:
            shown = unknown
        if self.seconds:
            took = f"about {duration(self.seconds)}, as before"
        else:
            took = ""
        return ", ".join(filter(None, (f"{self.what} {self.name}", shown, self.note, took)))


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The last start of a profile on this machine that downloaded nothing."""

    seconds: float
    phases: Mapping[str, float]
    """Seconds of each phase, in order."""

    def left(self, phase: Phase) -> float | None:
        """Return how long a start took from the beginning of a phase on; None for a phase that it did not have."""
        names = list(self.phases)
        if phase in names:
            return sum(list(self.phases.values())[names.index(phase) :])
        return None


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """What is before the answer."""

    parts: tuple[Part, ...]
    weights: int | None
    """Bytes of all models of the Hub; None if unknown."""
    start_s: float | None
    """Seconds of the last start."""
    machine: str = ""
    """The kind of machine that the profile is for."""
    toy: bool = False
    """Whether it serves a tiny pair that ships, of which starts were measured elsewhere."""

    def time(self) -> str:
        """Return how long it takes, in one sentence."""
        size = sum(part.nbytes or part.estimate or 0 for part in self.parts)
        unknown = [part for part in self.parts if part.verb == "download" and part.nbytes is None]
        parts = []
        if size:
            slow, fast = duration(size / _SLOW), duration(size / _FAST)
            least = "about " if unknown else ""
            if any(part.estimate is None for part in unknown):
                least = "at least "
            parts.append(f"{least}{size / 1e9:.1f} GB to download: {slow} at 100 Mbit/s, {fast} at 1 Gbit/s")
        if self.start_s:
            parts.append(f"{'then ' if self.parts else ''}about {duration(self.start_s)} to start, as last time")
        elif self.weights:
            read = duration(self.weights / _DISK)
            parts.append(
                f"the first start here reads {self.weights / 1e9:.1f} GB ({read} at 1 GB/s) and compiles kernels"
                f"{_COMPILING.get(self.machine, '')}"
            )
        elif self.toy:
            parts.append(_TOY)
        return "; ".join(parts) or "not known before the first start of this profile here"


def say_ahead(start: Start, note: Callable[[str], None]) -> None:
    """Say what runs it, what is downloaded and built first, and about how long it takes."""
    note(f"engine {start.why}")
    if start.joins or start.to_measure or not start.observed:
        return
    before = ahead(start)
    for line in (*no_gpu(start), *graphs_ahead(start.observed.loaded.profile, elsewhere=bool(start.server.nodes))):
        note(f"WARNING: {line}")
    for part in before.parts:
        note(f"{part.verb} {part}")
    note(f"time  {before.time()}")


def no_gpu(start: Start) -> Iterator[str]:
    """Yield that the profile needs a GPU, where nvidia-smi shows none on the machine that would run it."""
    if start.observed is None or start.observed.remote or start.server.nodes:
        return
    profile = start.observed.loaded.profile
    if not MACHINES[profile.machine].gpus:
        return
    with contextlib.suppress(EnvironmentMissing):  # nvidia-smi that does not answer has a row of its own in doctor
        if nvidia.gpus():
            return
        yield f"nvidia-smi finds no GPU here, and {profile.name} needs one: gemmaspec doctor {profile.name}"


def ahead(start: Start) -> Ahead:
    """Return what a start has before it. Asks the Hub or the registry only for sizes of what is missing."""
    sizes = {model: _size(model) for model in start.of_hub}
    earlier = earlier_start(start.server.name, start.engine)
    return Ahead(
        parts=tuple(_parts(start, sizes)),
        weights=sum(size for size in sizes.values() if size) or None,
        start_s=earlier.seconds if earlier else None,
        machine=_machine(start),
        toy=_is_toy(start),
    )


def _machine(start: Start) -> str:
    """Return the kind of machine that a start's profile is for; "" where that is not known."""
    if start.observed:
        return machine_kind(start.observed.loaded.profile.machine)
    return ""


def _is_toy(start: Start) -> bool:
    models = start.observed.models if start.observed else ()
    return bool(models) and all(seen.model.is_tiny for seen in models)


def _parts(start: Start, sizes: Mapping[ModelRef, int | None]) -> Iterator[Part]:
    if start.image:
        size, estimate = image_bytes(start.image)
        if estimate:
            note = f"about {estimate / 1e9:.0f} GB, as vLLM's images have"
        else:
            note = ""
        yield Part(verb="download", what="image", name=start.image, nbytes=size, note=note, estimate=estimate)
    if start.runtime:
        unknown = ensure_released(start.runtime)
        before = earlier_builds(start.runtime.device)
        disk = f"{needed_bytes(start.runtime) / 1e9:.0f} GB of disk while it is built"
        took = before[-1] if before else None
        note = "; ".join(filter(None, (disk, unknown, "" if took else _BUILDS[start.runtime.device])))
        yield Part(verb="build", what="runtime", name=start.runtime.key, seconds=took, note=note)
    for model in start.ask_access:
        if model in start.fetch:
            elsewhere = ""
        else:
            elsewhere = "unless the container's volume has it"
        yield Part(verb="download", what=model.role, name=model.model, nbytes=sizes[model], note=elsewhere)
    for model in start.place:
        yield Part(verb="copy", what=model.role, name=model.model)


def _size(model: ModelRef) -> int | None:
    """Return the size of a model: by the shapes that ship, else as the Hub lists it."""
    from gemmaspec.core.checkpoint.published.shipped import shipped_checkpoint

    if known := shipped_checkpoint(model.model):
        return known.nbytes
    from gemmaspec.run.models import access
    from gemmaspec.run.models.download import list_files

    with contextlib.suppress(GemmaspecError):
        if not access.is_offline():
            return sum(file.size for file in list_files(model.model, model.revision, role=model.role).files)
    return None


def image_bytes(image: str) -> tuple[int | None, int | None]:
    """Return an image's size by its registry, or an estimate where the registry does not give one."""
    size = _image_bytes(image)
    known = size is None and image.startswith(_OFFICIAL)
    return size, _OFFICIAL_BYTES if known else None


def _image_bytes(image: str) -> int | None:
    from gemmaspec.run.engine import image_size

    with contextlib.suppress(GemmaspecError):
        return image_size.download_bytes(image)
    return None


@contextlib.contextmanager
def downloads_told(start: Start, note: Callable[[str], None], *, interval_s: float = 15.0) -> Iterator[None]:
    """Say during the body how much of the models the server has downloaded, and about how long the rest takes."""
    cache, total = start.started.hub_cache, sum(_size(model) or 0 for model in start.fetch)
    if not cache or not total:
        yield
        return
    folders = [Path(cache) / f"models--{model.model.replace('/', '--')}" / "blobs" for model in start.fetch]
    over = threading.Event()
    tell = functools.partial(_tell_downloads, folders, _bytes_in(folders), total, note, over, interval_s)
    teller = threading.Thread(target=tell, name="gemmaspec-downloads", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join(interval_s)


def _tell_downloads(
    folders: Sequence[Path],
    before: int,
    total: int,
    note: Callable[[str], None],
    over: threading.Event,
    interval_s: float,
) -> None:
    began, last = time.monotonic(), before
    while not over.wait(interval_s):
        now = _bytes_in(folders)
        if last < now < total:
            left = (total - now) * (time.monotonic() - began) / (now - before)
            note(f"downloaded {now / 1e9:.2f} of {total / 1e9:.2f} GB, about {duration(left)} left")
        last = now


def _bytes_in(folders: Sequence[Path]) -> int:
    """Return the bytes of files that are there or begun."""
    total = 0
    for folder in folders:
        with contextlib.suppress(OSError):  # files are renamed meanwhile
            total += sum(file.stat().st_size for file in folder.iterdir())
    return total


def _file(name: str, engine: str) -> Path:
    return state_dir() / "took" / f"{name}.{engine}.json"


def earlier_start(name: str, engine: str) -> Earlier | None:
    """Return the last start of a profile that was remembered."""
    return records.kept(Earlier, _file(name, engine))


def remember(start: Start, *, seconds: float, phases: Mapping[Phase, float]) -> None:
    """Remember how long a start took, unless it downloaded models meanwhile. On a full disk it is forgotten."""
    if start.fetch or start.joins:
        return
    took = Earlier(seconds=round(seconds, 1), phases={str(key): round(s, 1) for key, s in phases.items()})
    with contextlib.suppress(GemmaspecError):
        records.write(_file(start.server.name, start.engine), took)
