"""A compose.yaml for each machine of a server that spans several: `rank_composes` gives them by host.

A caller names the hosts in the order of their ranks. The other files (plan.json, launch.py, rank_facts.py,
speculative-config.json, chat template) are the same on all hosts. `docker compose create`, then `docker compose cp
FILE vllm:/gemmaspec/` for each of those other files, then `docker compose start` brings them into the container's
volume `stack`, on a local or remote daemon.

With one host that is all: its container has its own network and a published port, as any other. With more, each uses
the machine's network. Rank 0 answers requests at `serve.bind`:`serve.port` of its machine; the others are headless.
Each launcher starts nothing but the plan that was rendered. vLLM listens at rank 0's `master_port`, and on ports that
the kernel chooses. Nothing of that is encrypted or authenticated: the addresses must be those of a private link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Final

from gemmaspec.core.errors import ProfileError, UsageError
from gemmaspec.core.fleet.hosts import Host, wrong_host
from gemmaspec.core.profile.command import Command
from gemmaspec.core.profile.load import Loaded
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.profile.replica import LOOPBACK
from gemmaspec.run.stack.compose import Seat, compose_yaml, plan_sha256, without_image
from gemmaspec.run.stack.serve import Served

MASTER_PORT: Final = 29501
"""vLLM's default for --master-port; the launcher's comparison uses the next one."""
HANG_S: Final = 180
"""Seconds after which rank 0 gives up a step that does not return (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS; vLLM's default
is 300). It bounds each call that runs a step, samples or takes draft tokens (vllm/v1/executor/multiproc_executor.py,
0.32.0), not loading, compiling or warming up. A long prompt is many steps of max_num_batched_tokens each. What can make
a healthy step slow is a kernel that the first request compiles, which may take more than a minute."""
START_S: Final = 600
"""Seconds that one rank waits for another between two steps of a start (--distributed-timeout-seconds): torch's default
for NCCL, named so that it does not change with the release. It must bear that one disk is slower than the other."""
_TIMEOUT: Final = "--distributed-timeout-seconds"
LABEL: Final = "dev.gemmaspec"
"""What the labels of a container begin with: .node, .rank, .nodes and .plan-sha256."""


def rank_composes(
    loaded: Loaded, served: Served, hosts: Sequence[Host], files: Mapping[str, str], *, master_port: int = MASTER_PORT
) -> dict[str, str]:
    """Return the compose.yaml of each host, in the order of the ranks, which is that of `hosts`; all have `files`.

    Raise UsageError for hosts that do not fit the profile or each other, ProfileError for a port that is used twice.
    """
    profile = loaded.profile
    check_hosts(profile, hosts)
    _need(1024 <= master_port <= 65535, f"{master_port} is not a master port: use one from 1024 to 65535")
    if profile.serve.port == master_port:
        raise ProfileError(
            f"{loaded.place('serve', 'port')}: serve.port: is {master_port}, which the ranks use on the same machine"
        )
    if not profile.image:
        raise without_image(loaded)
    plan = plan_sha256(files)
    composes = {}
    for rank, host in enumerate(hosts):
        seat = _seat(profile, rank, hosts, served=served, plan=plan, master_port=master_port)
        composes[host.name] = compose_yaml(profile, files, served, seat=seat)
    return composes


def check_hosts(profile: Profile, hosts: Sequence[Host]) -> None:
    """Raise UsageError unless the hosts fit the profile: as many, each once, and as fleet.yaml may describe them."""
    for host in hosts:
        why = wrong_host(host)
        _need(not why, why or "")
    _need(len(hosts) == profile.nodes, f"{profile.name} has nodes: {profile.nodes}, and {len(hosts)} hosts are given")
    for what, values in (
        ("host", [node.name for node in hosts]),
        ("address", [str(ip_address(node.address)) for node in hosts]),
    ):
        twice = sorted({value for value in values if values.count(value) > 1})
        _need(not twice, f"the {what} {', '.join(twice)} is given twice")
    devices = ", ".join(f"{node.name} has {' '.join(node.hca) or 'none'}" for node in hosts)
    _need(
        all(node.hca for node in hosts) or not any(node.hca for node in hosts),
        f"only some hosts have RDMA devices (hca), and NCCL needs them on all or none: {devices}",
    )


def rank_flags(profile: Profile, extra: Command, *, rank: str, master: str, master_port: int) -> list[str]:
    """Return what makes a `vllm serve …` one rank.

    The flags exist from 0.19.0 on. The executor is named because vLLM chooses `mp` by itself on CUDA only.
    """
    flags = ["--distributed-executor-backend", "mp", "--nnodes", str(profile.nodes), "--node-rank", rank]
    flags += ["--master-addr", master, "--master-port", str(master_port)]
    if not extra.given(_TIMEOUT):
        flags += [_TIMEOUT, str(START_S)]
    if rank != "0":
        flags.append("--headless")
    return flags


def rank_environment(profile: Profile, host: Host) -> dict[str, str]:
    """Return the variables of one machine.

    NCCL's index of the RoCE address (NCCL_IB_GID_INDEX) is never set: NCCL 2.21 and later find it for each device, and
    it changes while a machine runs. Without VLLM_HOST_IP, vLLM takes the address of the default route.
    """
    environment = {
        "VLLM_HOST_IP": host.address,
        "GLOO_SOCKET_IFNAME": host.interface,
        "TP_SOCKET_IFNAME": host.interface,
        # NCCL reads a name as the beginning of names unless it follows a "=".
        "NCCL_SOCKET_IFNAME": f"={host.interface}",
    }
    if host.hca:
        environment["NCCL_IB_HCA"] = "=" + ",".join(host.hca)
    return {**environment, **hang_environment(profile)}


def hang_environment(profile: Profile) -> dict[str, str]:
    """Return the variable that bounds a step in which a rank hangs, unless the profile sets it."""
    name = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
    if name in profile.env:
        return {}
    return {name: str(HANG_S)}


def worker_health(profile: Profile, *, master: str, master_port: int) -> list[str]:
    """Return Docker's check of a headless rank: rank 0 still holds the port at which vLLM's ranks met."""
    code = f"import socket as s; s.create_connection(({master!r}, {master_port}), 8).close()"
    return ["CMD", profile.container.python, "-c", code]


def _seat(
    profile: Profile,
    rank: int,
    hosts: Sequence[Host],
    *,
    served: Served,
    plan: str,
    master_port: int,
) -> Seat:
    host, alone = hosts[rank], profile.nodes == 1
    labels = {"node": host.name, "rank": str(rank), "nodes": str(profile.nodes), "plan-sha256": plan}
    named = {f"{LABEL}.{name}": text for name, text in labels.items()}
    bind = ip_address(profile.serve.bind)  # rank 0 listens on one address of its machine alone
    listens = LOOPBACK if bind.is_unspecified else str(bind)
    if alone:
        return Seat(command=list(served.command), labels=named)
    master, head = hosts[0].address, rank == 0
    flags = rank_flags(profile, served.extra, rank=str(rank), master=master, master_port=master_port)
    # the head is asked for an answer, as any server; a headless rank has no API to ask
    health = () if head else worker_health(profile, master=master, master_port=master_port)
    return Seat(
        command=[*served.command, *flags],
        labels=named,
        listens=listens,
        health=health,
        environment=rank_environment(profile, host),
        host_network=True,
        serves=head,
        rdma=bool(host.hca),
    )


def _need(condition: object, message: str) -> None:
    if not condition:
        raise UsageError(message)
