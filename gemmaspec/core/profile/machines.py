"""The machines that a profile can name: `rtx-5090`, or `2xrtx-5090` for a host with two of these GPUs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One kind of machine: the properties that a start depends on."""

    name: str
    """As a profile names it: the kind, or how many GPUs and the kind, such as 2xrtx-5090."""
    summary: str
    gpus: bool
    size_gb: int | None = None
    """Memory of one GPU as people and shops call it: 24, 32, 80."""
    memory_gb: float | None = None
    """Usable memory of one GPU in 10^9 bytes, as CUDA reports it; None means that of this machine."""
    bandwidth_gb_s: float | None = None
    """Memory bandwidth in 10^9 bytes per second."""
    compute_capability: str | None = None
    most_gpus: int | None = None
    """GPUs that such a machine has at most, or has where the name says how many; None if unknown."""
    count: int | None = None
    """GPUs of this machine where its name says how many."""
    unified: bool = False
    """Whether the GPU's memory is that of the CPU: what one takes, the other has not."""
    link_gbit_s: float | None = None
    """Network to another such machine in 10^9 bits per second, as the vendor names it; None if machines differ."""
    gpu_names: tuple[str, ...] = ()
    """Its GPU as nvidia-smi names it."""
    aliases: tuple[str, ...] = ()
    """What else people call it."""


def _rows() -> dict[str, Machine]:
    text = Path(__file__).with_name("machines.json").read_text(encoding="utf-8")
    machines = {}
    for row in json.loads(text):
        for key in ("gpu_names", "aliases"):
            row[key] = tuple(row.get(key, ()))
        machines[row["name"]] = Machine(**row)
    return machines


_KINDS: Final = _rows()
_COUNTED: Final = re.compile(r"([1-9][0-9]?)x(.+)")
_WRITTEN: Final = (
    re.compile(r"(?P<count>[1-9][0-9]?)\s*[x*]\s*(?P<kind>.+)"),
    re.compile(r"(?P<kind>.+?)\s*[x*]\s*(?P<count>[1-9][0-9]?)"),
)
"""How people write a number of GPUs: 2x5090, 2 x RTX 5090, rtx-5090x2."""


class _Machines(Mapping[str, Machine]):
    """Every kind of machine by its name, and by its name with a number of GPUs before it."""

    def __getitem__(self, name: str) -> Machine:
        if name in _KINDS:
            return _KINDS[name]
        counted = _COUNTED.fullmatch(name)
        if counted is None or counted[2] not in _KINDS:
            raise KeyError(name)
        return _with_gpus(_KINDS[counted[2]], int(counted[1]), name)

    def __iter__(self) -> Iterator[str]:
        return iter(_KINDS)

    def __len__(self) -> int:
        return len(_KINDS)


def _with_gpus(kind: Machine, count: int, name: str) -> Machine:
    """Return a machine with so many of a kind's GPUs. Raise KeyError where there is no such machine."""
    if not kind.gpus or (kind.most_gpus is not None and count > kind.most_gpus):
        raise KeyError(name)
    return replace(kind, name=name, most_gpus=count, count=count)


MACHINES: Final[Mapping[str, Machine]] = _Machines()
"""Every kind of machine; a name such as 2xrtx-5090 is found too, though it is not listed.

Memory is what CUDA reports, which is what vLLM takes a share of: some percent less than nvidia-smi's total, of which
the driver keeps a part. Sources: torch on such machines for H100 and H200; owners' logs for a Spark (121.69 GiB, or
119.68 with older firmware); published logs for the others, the least where they differ ("GPU 0 has a total capacity of
23.52 GiB"). Bandwidth and link: NVIDIA's data sheets."""

HERE: Final = "here"
"""What a command calls the machine that it runs on."""
ANY_GPU: Final = "nvidia"
"""The machine of a profile for any NVIDIA GPU."""


def machine_of(gpu: str) -> str | None:
    """Return the machine that has a GPU of this name; None for one that is not known by name.

    Variants with another memory or bandwidth (H200 NVL, RTX 3090 Ti, a PRO 6000 Server) are others.
    """
    return next((kind.name for kind in _KINDS.values() if gpu in kind.gpu_names), None)


def machine_with(gpus: Sequence[str]) -> str | None:
    """Return the machine with GPUs of these names, the first kind counted; None for one that is not known by name."""
    kind = machine_of(gpus[0]) if gpus else None
    if kind is None:
        return None
    alike = [name for name in gpus if machine_of(name) == kind]
    return counted_name(kind, len(alike))


def machine_kind(machine: str) -> str:
    """Return a machine's name without its number of GPUs."""
    counted = _COUNTED.fullmatch(machine)
    if counted and counted[2] in _KINDS:
        return counted[2]
    return machine


def counted_name(kind: str, gpus: int) -> str:
    """Return the name of a machine with so many GPUs; one GPU needs no number."""
    if gpus > 1:
        return f"{gpus}x{kind}"
    return kind


def as_named(text: str) -> str:
    """Return a machine's name in the one spelling that is kept: 2x5090 is 2xrtx-5090; other text is unchanged."""
    for written in _WRITTEN:
        if found := written.fullmatch(text.strip()):
            kind = _kind_called(found["kind"])
            if kind and int(found["count"]) == 1:
                return kind
            if kind:
                return f"{found['count']}x{kind}"
    return _kind_called(text) or text


def meant(asked: str | None, own: str) -> str:
    """Return the machine that a command is for: the one that is asked for, else a profile's own.

    HERE is the machine that the command runs on, which a profile for any GPU means too.
    """
    if asked:
        return as_named(asked)
    if machine_kind(own) == ANY_GPU:
        return HERE
    return own


def _kind_called(text: str) -> str | None:
    """Return the kind of machine that a name or an alias means, however it is spelled."""
    word = _spelled(text)
    for kind in _KINDS.values():
        if word in map(_spelled, (kind.name, *kind.aliases)):
            return kind.name
    return None


def _spelled(text: str) -> str:
    plain = re.sub(r"[-_\s]", "", text.lower())
    return plain.removeprefix("nvidia").removeprefix("geforce") or plain
