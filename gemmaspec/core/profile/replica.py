"""From a profile with replicas to each of them: a profile of its own, with its own name, port and GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.model import Router

if TYPE_CHECKING:
    from gemmaspec.core.profile.model import Profile

LOOPBACK: Final = "127.0.0.1"
"""Where a replica listens: the router asks it there, and nobody else has to."""
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
BIND: Final = "VLLM_CPU_OMP_THREADS_BIND"
"""The cores of each rank's threads, as in 0-3|4-7. By default vLLM takes them from the first NUMA node, so that two
servers of one machine compute on the same ones (vLLM 0.32.0, utils/ompmultiprocessing.py)."""
MOST_CHARACTERS: Final = 60
"""Length of a name to which -1 to -16 can be added."""


def router_of(profile: Profile) -> Router:
    """Return the router of a profile with replicas, with everything filled in that the profile leaves out."""
    given = profile.router or Router()
    filled = {
        "port": given.port or profile.serve.port,
        "metrics_port": given.metrics_port or profile.serve.port + profile.replicas + 1,
    }
    return given.model_copy(update=filled)


def replica_name(name: str, index: int) -> str:
    """Return the name of a replica's stack; replicas are counted from 1."""
    return f"{name}-{index}"


def replica_port(profile: Profile, index: int) -> int:
    """Return the port of a replica."""
    return profile.serve.port + index


def gpus_each(profile: Profile) -> int:
    """Return how many GPUs one replica uses; 0 on a machine without."""
    if not MACHINES[profile.machine].gpus:
        return 0
    return (profile.serve.tensor_parallel_size or 1) * (profile.serve.pipeline_parallel_size or 1)


def gpus_taken(profile: Profile) -> tuple[int, ...]:
    """Return the GPUs that the servers of a profile use, by their numbers in nvidia-smi; none on a machine without."""
    number = gpus_each(profile) * profile.replicas
    if profile.devices is not None:
        return tuple(profile.devices[:number])
    return tuple(range(number))


def devices_of(profile: Profile, index: int) -> list[int] | None:
    """Return the GPUs of a replica, in order; None on a machine without."""
    each = gpus_each(profile)
    if not each:
        return None
    every = range(each * profile.replicas) if profile.devices is None else profile.devices
    return list(every[each * (index - 1) : each * index])


def _cpus_of(profile: Profile, index: int) -> list[str] | None:
    """Return the cores of a replica; None if vLLM chooses them."""
    if profile.cpus:
        return profile.cpus[index - 1 : index]
    return None


def derived(profile: Profile, index: int) -> Profile:
    """Return one replica: its stack's name, its port on the loopback interface, its own GPUs and cores."""
    assert 1 <= index <= profile.replicas, index
    serve = profile.serve.model_copy(update={"port": replica_port(profile, index), "bind": LOOPBACK})
    return profile.as_replica(
        name=replica_name(profile.name, index),
        serve=serve,
        replicas=1,
        router=None,
        devices=devices_of(profile, index),
        cpus=_cpus_of(profile, index),
    )


def cores_in(entry: str) -> set[int]:
    """Return the cores that an entry of `cpus` lists."""
    cores: set[int] = set()
    for part in entry.replace("|", ",").split(","):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores


def bound_environment(profile: Profile) -> dict[str, str]:
    """Return the variable that binds one server to its cores; nothing if vLLM chooses them."""
    if profile.cpus:
        return {BIND: profile.cpus[0]}
    return {}


def problems(profile: Profile) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each key of replicas and router that is wrong together with others, and why."""
    if profile.devices is not None:
        yield from _devices(profile)
    if profile.cpus is not None:
        yield from _cpus(profile)
    if profile.replicas == 1:
        if profile.router:
            yield ("router",), "is only used with replicas: 2 or more"
        return
    if getattr(profile, "nodes", 1) > 1:
        yield ("replicas",), "cannot be combined with nodes: a replica is one machine's"
    if len(profile.name) > MOST_CHARACTERS:
        yield ("name",), f"is longer than {MOST_CHARACTERS} characters, and the replicas' names are longer still"
    yield from _router(profile)
    yield from _gpus(profile)


def _router(profile: Profile) -> Iterator[tuple[tuple[str, ...], str]]:
    router = router_of(profile)
    ports = {}
    for index in range(1, profile.replicas + 1):
        ports[replica_port(profile, index)] = f"replica {index}"
    if max(ports) > 65535:
        yield ("serve", "port"), f"leaves no ports for {profile.replicas} replicas after it"
    for key, port in (("port", router.port), ("metrics_port", router.metrics_port)):
        if port in ports:
            yield ("router", key), f"{port} is the port of {ports[port]}; the replicas listen after serve.port"
        elif port and port > 65535:
            yield ("router", key), "is above 65535, because serve.port is; set another one"
    if router.port == router.metrics_port:
        yield ("router", "metrics_port"), f"{router.port} is the router's own port"


def _gpus(profile: Profile) -> Iterator[tuple[tuple[str, ...], str]]:
    each = gpus_each(profile)
    if not each:
        return
    most = MACHINES[profile.machine].most_gpus
    if most is not None and each * profile.replicas > most:
        yield (
            ("replicas",),
            f"{profile.replicas} replicas use {profile.replicas * each} GPUs, but {profile.machine} has {most}",
        )
    if profile.devices is not None and len(profile.devices) < each * profile.replicas:
        yield ("devices",), f"lists {len(profile.devices)} GPUs, but {profile.replicas} replicas use {each} each"


def _devices(profile: Profile) -> Iterator[tuple[tuple[str, ...], str]]:
    listed: Sequence[int] = profile.devices or ()
    if not MACHINES[profile.machine].gpus:
        yield ("devices",), f"is for machines with GPUs, and a {profile.machine} has none"
    elif not listed or len(set(listed)) != len(listed):
        yield ("devices",), "lists no GPU, or one of them twice"
    if VISIBLE in profile.env:
        yield ("env", VISIBLE), "contradicts devices; remove one of them"


def _cpus(profile: Profile) -> Iterator[tuple[tuple[str, ...], str]]:
    listed: Sequence[str] = profile.cpus or ()
    ranks = (profile.serve.tensor_parallel_size or 1) * (profile.serve.pipeline_parallel_size or 1)
    if MACHINES[profile.machine].gpus:
        yield ("cpus",), f"is for machines without GPUs, and a {profile.machine} has some; use devices"
    elif profile.nodes > 1:
        yield ("cpus",), "cannot be combined with nodes"
    elif len(listed) != profile.replicas:
        yield ("cpus",), f"needs an entry for each of {profile.replicas} server(s), and has {len(listed)}"
    if BIND in profile.env:
        yield ("env", BIND), "contradicts cpus; remove one of them"
    taken: dict[int, int] = {}
    for index, entry in enumerate(listed, 1):
        cores = cores_in(entry)
        if entry.count("|") + 1 != ranks or not cores:
            yield ("cpus",), f"{entry} is not an ascending list of cores for each of {ranks} ranks, with | between them"
        for core in sorted(cores & taken.keys())[:1]:
            yield ("cpus",), f"core {core} is listed for replica {taken[core]} and for replica {index}"
        taken |= dict.fromkeys(cores, index)
