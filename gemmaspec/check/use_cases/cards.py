"""The GPUs of one machine: which profile they serve, and what those that one server leaves idle could do."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError
from gemmaspec.core.profile.device import GIB
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.machines import HERE, MACHINES, counted_name, machine_kind, machine_of
from gemmaspec.core.profile.replica import gpus_each

if TYPE_CHECKING:
    from gemmaspec.check.use_cases.predict import Prediction
    from gemmaspec.run.machine.nvidia import Gpu

ON_ONE: Final = "nvidia-31b-mtp"
"""What one GPU serves that is large enough."""
ON_SEVERAL: Final = ("nvidia2-31b-mtp",)
"""What two GPUs serve that are too small alone; they come before a smaller cache or another model on one."""
ON_A_SMALL_ONE: Final = (
    "nvidia-31b-mtp-32gb",
    "nvidia-26b-a4b-mtp",
    "nvidia-31b-qat-mtp-24gb",
    "nvidia-12b-qat-mtp",
    "nvidia-e4b-qat-mtp",
    "nvidia-e2b-qat-mtp",
)
ON_SMALL_ONES: Final = ("nvidia2-26b-a4b-mtp",)
SEVERAL_USERS: Final = 8
_FIRST_OF_OTHERS: Final = 8001
"""The port of the server on a second kind of GPUs; the first server takes the default before it."""
_BASES: Final = {
    "own": "from what bench measured here",
    "shipped": "from cells that were measured on a similar machine",
    "roofline": "from bytes over bandwidth, not from a measurement",
    "measured": "from measured cells",
}


@dataclass(frozen=True, kw_only=True)
class Cards:
    """The GPUs of one kind in a machine."""

    name: str
    """As nvidia-smi has it."""
    kind: str | None
    """The machine that is named after it; None for a GPU that is not known by name."""
    numbers: tuple[int, ...]
    """Their numbers in nvidia-smi."""
    among_others: bool
    """Whether the machine has GPUs of another kind too."""
    size_gb: int | None
    """Memory of one as people call it; None for a GPU that shares the CPU's."""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.numbers)

    @property
    def machine(self) -> str | None:
        """The name of a machine with all of them; None for a GPU that is not known by name."""
        if self.kind:
            return counted_name(self.kind, self.count)
        return None

    def __str__(self) -> str:
        several = f"{self.count} x " if self.count > 1 else ""
        each = " each" if self.count > 1 else ""
        if self.size_gb:
            size = f", {self.size_gb} GB{each}"
        else:
            size = ""
        return f"{several}{self.name}{size}{f' ({self.machine})' if self.machine else ''}"


def kinds_of(gpus: Sequence[Gpu]) -> tuple[Cards, ...]:
    """Return the GPUs of a machine by kind, that with the most memory first."""
    by_name: dict[str, list[int]] = {}
    for number, gpu in enumerate(gpus):
        by_name.setdefault(gpu.name, []).append(number)
    kinds = []
    for name, numbers in sorted(by_name.items(), key=lambda item: -(gpus[item[1][0]].memory or 0)):
        memory, kind = gpus[numbers[0]].memory, machine_of(name)
        size = MACHINES[kind].size_gb if kind else None
        if size is None and memory:
            size = round(memory / GIB)
        cards = Cards(name=name, kind=kind, numbers=tuple(numbers), among_others=len(by_name) > 1, size_gb=size)
        kinds.append(cards)
    return tuple(kinds)


def taking(cards: Cards, number: int) -> tuple[str, ...]:
    """Return the overrides that put servers on so many GPUs of a kind; none where the machine has no other kind.

    Without them CUDA counts the fastest GPU first, which may be of another kind.
    """
    if not cards.among_others:
        return ()
    return (f"devices=[{','.join(map(str, cards.numbers[:number]))}]",)


def up_command(name: str, overrides: Sequence[str] = ()) -> str:
    """Return the command that starts a profile, quoted for a shell."""
    words = ["gemmaspec", "up", name]
    for override in overrides:
        words += ["--set", override]
    return shlex.join(words)


def others_of(kinds: Sequence[Cards]) -> Iterator[str]:
    """Yield what each further kind of GPUs could serve on its own.

    A server on two kinds has, on each GPU, the cache that the smaller one has room for, and waits for the slower one.
    """
    for port, cards in enumerate(kinds, _FIRST_OF_OTHERS):
        yield f"also here: {cards}; a server of its own there:"
        offered = next((one for one in in_order(cards) if cards.machine and why_not(one, cards.machine) is None), None)
        if offered:
            number = max(1, gpus_each(load_profile(offered).profile))
        else:
            number = cards.count
        yield f"  {up_command(offered or 'PROFILE', (*taking(cards, number), f'serve.port={port}'))}"


def in_order(cards: Cards) -> tuple[str, ...]:
    """Return the profiles to offer, best first."""
    several = ON_SEVERAL if cards.count > 1 else ()
    small = ON_SMALL_ONES if cards.count > 1 else ()
    return (ON_ONE, *several, *ON_A_SMALL_ONE, *small)


def why_not(name: str, machine: str | None) -> str | None:
    """Return why a profile does not fit on a machine (None: this one); None if it does, or if nobody can compute it."""
    from gemmaspec.check.use_cases.fit import FitRequest, fit

    with contextlib.suppress(EnvironmentMissing):
        answer = fit(FitRequest(profile=name, machine=machine or HERE))
        if answer.fits:
            return None
        return next(iter((*answer.problems, *answer.refused)), "not enough memory")
    return None


def expected(name: str, machine: str | None, overrides: Sequence[str] = ()) -> Iterator[str]:
    """Yield the predicted speed of one request, with its interval and its basis."""
    spec = load_profile(name, overrides=overrides).profile.speculative
    guess = _predicted(name, machine, (1,), overrides)
    if guess:
        k = spec.k_at(1) if spec else 0
        drafted = next((row for row in guess.rows if row.k == k and row.concurrency == 1), None)
        alone = next((row for row in guess.rows if row.k == 0 and row.concurrency == 1), None)
        if drafted:
            low, high = drafted.interval
            if alone and k:
                without = f"; {alone.tokens_per_second:.0f} without a draft"
            else:
                without = ""
            yield (
                f"expected: {drafted.tokens_per_second:.0f} tokens/s for one request ({low:.0f} to {high:.0f} with "
                f"90 % probability){without}: predicted {_BASES[guess.basis]}"
            )
            return
    yield f"expected: not known for this GPU; gemmaspec bench {name} measures it"


def idle(name: str, cards: Cards) -> Iterator[str]:
    """Yield what the GPUs could do that one server of a profile leaves idle, for one user and for eight."""
    profile = load_profile(name).profile
    each = max(1, gpus_each(profile))
    servers = cards.count // each
    if servers < 2:
        return
    more = (f"serve.tensor_parallel_size={each * 2}",)
    rest = cards.count - each
    yield f"it uses {each} of {cards.count} GPUs; with the other{'s' if rest > 1 else ''} it could be:"
    one, eight = _rate(name, cards, 1), _rate(name, cards, SEVERAL_USERS)
    yield f"  one server, as it is offered{_figures(one, eight)}"
    shared = max(1, -(-SEVERAL_USERS // servers))
    of_each = _rate(name, cards, shared)
    if of_each:
        all_of_them = of_each * (SEVERAL_USERS / shared)
    else:
        all_of_them = None
    room = _room_for_more(profile.machine)
    replicas = up_command(name, (*room, *taking(cards, servers * each), f"replicas={servers}"))
    yield f"  {servers} servers behind one address, {replicas}{_figures(one, all_of_them)}"
    wider = (_rate(name, cards, 1, (*room, *more)), _rate(name, cards, SEVERAL_USERS, (*room, *more)))
    on_more = up_command(name, (*room, *taking(cards, each * 2), *more))
    yield f"  one server on {each * 2} GPUs, {on_more}{_figures(*wider)}"


def _room_for_more(machine: str) -> tuple[str, ...]:
    """Return the override without which a profile for so many GPUs (2xnvidia) refuses more of them."""
    if MACHINES[machine].count is None:
        return ()
    return (f"machine={machine_kind(machine)}",)


def _figures(one: float | None, eight: float | None) -> str:
    """Return tokens per second for one user and for eight; those that are not known are said to be."""
    parts = []
    if one:
        parts.append(f"{one:,.0f} for one user")
    if eight:
        parts.append(f"{eight:,.0f} for eight")
    if parts:
        return f": {' and '.join(parts)} tokens/s"
    return ": how fast is not known"


def _rate(name: str, cards: Cards, requests: int, overrides: Sequence[str] = ()) -> float | None:
    """Return the predicted tokens per second of so many requests together; None where it is not known."""
    limits = (*overrides, f"serve.max_num_seqs={max(requests, SEVERAL_USERS)}")
    spec = load_profile(name, overrides=limits).profile.speculative
    k = spec.k_at(requests) if spec else 0
    guess = _predicted(name, cards.kind, (requests,), limits)
    rows = guess.rows if guess else ()
    return next((row.tokens_per_second for row in rows if row.k == k and row.concurrency == requests), None)


def _predicted(
    name: str, machine: str | None, requests: tuple[int, ...], overrides: Sequence[str]
) -> Prediction | None:
    from gemmaspec.check.use_cases.predict import PredictRequest, predict_profile

    with contextlib.suppress(GemmaspecError):
        asked = PredictRequest(profile=name, overrides=overrides, machine=machine, concurrencies=requests)
        return predict_profile(asked)
    return None
