"""One server on several machines: what a profile derives, and what each host's stack says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemmaspec.cli.app import run
from gemmaspec.core import data
from gemmaspec.core.errors import GemmaspecError, ProfileError, UsageError
from gemmaspec.core.fleet.hosts import Host, parse_fleet
from gemmaspec.core.profile.load import load_profile
from gemmaspec.run.stack.build import build_stack
from gemmaspec.run.stack.paths import container_paths
from gemmaspec.run.stack.serve import serve_command
from tests.run.test_render import compose_config, needs_compose
from tests.support.golden_stacks import hosts_of, stacks_of

NAME = "spark-31b-e2b"
PER_HOST = {"VLLM_HOST_IP", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"}


def services(*sets: str, ranks: list[Host] | None = None, name: str = NAME) -> list[dict[str, Any]]:
    """The service of each host, in the order of the ranks."""
    loaded = load_profile(name, overrides=("nodes=2", *sets))
    stacks = stacks_of(loaded, ranks or hosts_of(2))
    return [yaml.safe_load(stack.files["compose.yaml"])["services"]["vllm"] for stack in stacks.values()]


def test_the_gpus_of_target_and_draft_follow_the_nodes() -> None:
    one, two = load_profile(NAME).profile, load_profile(NAME, overrides=["nodes=2"]).profile
    assert (one.nodes, one.serve.tensor_parallel_size) == (1, None)
    assert two.serve.tensor_parallel_size == 2
    assert two.speculative
    assert two.speculative.draft_tensor_parallel_size == 2


@pytest.mark.parametrize(
    ("sets", "wanted"),
    [
        (("serve.tensor_parallel_size=4",), (4, 4)),
        (("serve.pipeline_parallel_size=2",), (None, 1)),
        (("serve.extra_args=['-tp', '2']",), (None, 1)),
        (("speculative.draft_tensor_parallel_size=",), (2, 2)),
    ],
)
def test_a_size_that_is_set_stays(sets: tuple[str, ...], wanted: tuple[int | None, int]) -> None:
    profile = load_profile(NAME, overrides=("nodes=2", *sets)).profile
    assert profile.speculative
    assert (profile.serve.tensor_parallel_size, profile.speculative.draft_tensor_parallel_size) == wanted


def test_a_head_keeps_its_own_size() -> None:
    spec = load_profile("spark2-31b-mtp").profile.speculative
    assert spec
    assert spec.draft_tensor_parallel_size is None


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("serve.tensor_parallel_size=3", "nodes: "),
        ("nodes=0", "nodes: "),
        ("nodes=65", "nodes: "),
        ("env.VLLM_HOST_IP=10.0.0.1", "env.VLLM_HOST_IP: differs on each machine"),
        ("env.NCCL_IB_HCA=mlx5_0", "env.NCCL_IB_HCA: differs on each machine"),
        ("serve.extra_args=[--headless]", "serve.extra_args.0: nodes: 2 already sets --headless"),
        ("serve.extra_args=[--node_rank=1]", "already sets --node-rank"),
        ("serve.extra_args=['-asc', '2']", "already sets --api-server-count"),
    ],
)
def test_what_does_not_go_with_several_machines(override: str, key: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile(NAME, overrides=["nodes=2", override])
    assert key in caught.value.message


def test_two_hosts_differ_only_in_what_is_theirs() -> None:
    head, worker = services()
    different = {key for key in head if head[key] != worker.get(key)}
    assert different == {"command", "environment", "labels", "healthcheck"}
    assert set(head) == set(worker)
    pairs = set(head["environment"].items()) ^ set(worker["environment"].items())
    assert {name for name, _ in pairs} == {"VLLM_HOST_IP"}
    assert [one for one in worker["command"] if one not in head["command"]] == ["--headless"]
    assert [one["command"][one["command"].index("--node-rank") + 1] for one in (head, worker)] == ["0", "1"]


def test_every_host_expects_the_plan_that_was_rendered() -> None:
    stacks = stacks_of(load_profile(NAME, overrides=["nodes=2"]), hosts_of(2))
    plans = {stack.files["plan.json"] for stack in stacks.values()}
    plan = json.loads(plans.pop())["sha256"]
    assert not plans
    for stack in stacks.values():
        words = yaml.safe_load(stack.files["compose.yaml"])["services"]["vllm"]["entrypoint"]
        assert words[words.index("--expect-plan") + 1] == plan
        assert stack.files["rank_facts.py"] == data.RANK_FACTS.read_text()


def test_the_machines_network_devices_and_memory() -> None:
    for one in services():
        assert one["network_mode"] == "host"
        assert "ports" not in one
        assert one["restart"] == "no"
        assert one["read_only"] is True
        assert one["shm_size"] == "16gb"
        assert (one["ulimits"], one["cap_add"], one["devices"]) == (
            {"memlock": -1},
            ["DAC_OVERRIDE", "IPC_LOCK"],
            ["/dev/infiniband"],
        )
        assert {"type": "volume", "source": "stack", "target": "/gemmaspec"} in one["volumes"]
        assert not [mount for mount in one["volumes"] if mount.get("bind", {}).get("create_host_path")]
        environment = one["environment"]
        assert set(environment) >= PER_HOST
        assert environment["NCCL_SOCKET_IFNAME"] == "=enp1s0f1np1"
        assert environment["NCCL_IB_HCA"] == "=rocep1s0f1,roceP2p1s0f1"
        assert "NCCL_IB_GID_INDEX" not in environment
        assert 0 < int(environment["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"]) < 300


def test_without_rdma_devices_a_container_has_no_more_rights() -> None:
    ranks = [host_with(name=f"h{n}", address=f"10.0.0.{n + 1}") for n in range(2)]
    for one in services(ranks=ranks):
        assert not {"devices", "ulimits"} & set(one)
        assert one["cap_add"] == ["DAC_OVERRIDE"]
        assert "NCCL_IB_HCA" not in one["environment"]


def test_the_server_itself_listens_where_the_profile_says_and_only_rank_0_has_the_key() -> None:
    key = "pass_env=[HF_TOKEN, VLLM_API_KEY]"
    head, worker = services("serve.bind=192.168.1.5", key)
    assert head["command"][head["command"].index("--host") + 1] == "192.168.1.5"
    assert "--host=192.168.1.5" in head["healthcheck"]["test"]
    assert "192.168.100.10', 29501" in worker["healthcheck"]["test"][-1]
    assert "VLLM_API_KEY" in head["environment"]
    assert "VLLM_API_KEY" not in worker["environment"]
    assert not [one for one in services("serve.bind=0.0.0.0", key)[0]["healthcheck"]["test"] if "--host" in one]


def test_a_profile_may_choose_the_bounds() -> None:
    own = services("env.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS='90'", "serve.extra_args=[--distributed-timeout-seconds=99]")
    for one in own:
        assert one["environment"]["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] == "90"
        assert one["command"].count("--distributed-timeout-seconds") == 0
        assert "--distributed-timeout-seconds=99" in one["command"]


def test_one_named_host_has_its_own_network_and_the_files_in_a_volume() -> None:
    loaded = load_profile("tiny-cpu")
    alone = host_with(name="far")
    (stack,) = stacks_of(loaded, [alone]).values()
    usual = yaml.safe_load(build_stack(loaded, form="folder").files["compose.yaml"])["services"]["vllm"]
    one = yaml.safe_load(stack.files["compose.yaml"])["services"]["vllm"]
    assert {key for key in one if one[key] != usual.get(key)} == {"entrypoint", "labels", "volumes"}
    assert "rank_facts.py" not in stack.files


@needs_compose
@pytest.mark.parametrize("hca", [(), ("rocep1s0f1",)])
def test_docker_compose_accepts_every_host(hca: tuple[str, ...], tmp_path: Path) -> None:
    ranks = [host_with(name=f"h{n}", address=f"fd00::{n + 1}", hca=hca) for n in range(2)]
    loaded = load_profile(NAME, overrides=["nodes=2"])
    for host, stack in stacks_of(loaded, ranks).items():
        (tmp_path / host).mkdir()
        file = tmp_path / host / "compose.yaml"
        file.write_text(stack.files["compose.yaml"])
        service = compose_config(file)["services"]["vllm"]
        assert service["network_mode"] == "host"
        assert service["environment"]["VLLM_HOST_IP"] == f"fd00::{int(host[1:]) + 1}"


GOOD: dict[str, Any] = {"name": "spark-1", "docker": "spark-1", "address": "10.0.0.1", "interface": "eth0", "hca": ()}


def host_with(**more: Any) -> Host:
    return Host(**{**GOOD, **more})


@pytest.mark.parametrize(
    "wrong",
    [
        *({"name": host} for host in ("", "../up", "a/b", "-x", "a b", "x" * 64, "a..b", "ü", "a\n", "$(id)", "Spark")),
        *({"address": one} for one in ("", "spark-1", "0.0.0.0", "::", "224.0.0.1", "10.0.0.1/24", "fe80::1%eth0")),
        *(
            {"interface": one}
            for one in ("", "eth0,eth1", "=eth0", "^lo", "a" * 16, "eth 0", "eth0\n", "../x", "eth0@if2")
        ),
        *({"hca": (one,)} for one in ("", "a,b", "=x", "^x", "mlx5_0:x", "a b", "mlx5_0\n")),
    ],
)
def test_a_hostile_host_is_refused(wrong: dict[str, Any]) -> None:
    loaded = load_profile("tiny-cpu")
    stacks_of(loaded, [host_with()])
    with pytest.raises(UsageError):
        stacks_of(loaded, [host_with(**wrong)])


@pytest.mark.parametrize(("key", "value"), [("interface", "_x"), ("interface", "eth0@if2"), ("address", "127.0.0.1")])
def test_a_rank_takes_what_fleet_yaml_takes_and_nothing_else(key: str, value: str) -> None:
    host = {"docker": "spark-1", "address": "10.0.0.1", "interface": "eth0", key: value}
    answers = []
    makers: tuple[Callable[[], object], ...] = (
        lambda: parse_fleet(json.dumps({"hosts": {"spark-1": host}}), file="fleet.yaml"),
        lambda: stacks_of(load_profile("tiny-cpu"), [host_with(**host)]),
    )
    for make in makers:
        try:
            make()
        except (ProfileError, UsageError) as error:
            answers.append(error.message.partition(f"spark-1.{key}: ")[2])
        else:
            answers.append("")
    assert answers[0] == answers[1]


def other(**more: Any) -> Host:
    return host_with(**{"name": "spark-2", "address": "10.0.0.2", **more})


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (other(name="spark-1"), "the host spark-1 is given twice"),
        (other(address="10.0.0.1"), "the address 10.0.0.1 is given twice"),
        (other(hca=("mlx5_0",)), "only some hosts have RDMA devices"),
        (None, "has nodes: 2, and 1 hosts are given"),
    ],
)
def test_ranks_that_do_not_fit_each_other_are_refused(second: Host | None, says: str) -> None:
    ranks = [host_with(), *([second] if second else [])]
    with pytest.raises(UsageError) as caught:
        stacks_of(load_profile(NAME, overrides=["nodes=2"]), ranks)
    assert says in caught.value.message


@pytest.mark.parametrize("port", [29501])
def test_a_port_that_the_ranks_use_is_refused(port: int) -> None:
    with pytest.raises(ProfileError, match=f"serve.port: is {port}"):
        stacks_of(load_profile(NAME, overrides=["nodes=2", f"serve.port={port}"]), hosts_of(2))
    with pytest.raises(UsageError):
        stacks_of(load_profile(NAME, overrides=["nodes=2"]), hosts_of(2), master_port=65536)


def test_without_hosts_a_server_on_several_machines_is_not_rendered(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(GemmaspecError, match="each of as many machines needs a stack"):
        build_stack(load_profile("spark2-31b"), form="process")
    assert run(["render", "spark2-31b"]) == 2
    assert "--hosts" in capsys.readouterr().err


def test_every_rank_is_told_what_the_profile_says() -> None:
    loaded = load_profile(NAME, overrides=["nodes=2"])
    wanted = serve_command(loaded.profile, container_paths(loaded.profile))
    for one in services():
        assert tuple(one["command"][: len(wanted)]) == wanted


@pytest.mark.parametrize("command", [("predict",), ("tune", "--dry-run")])
def test_what_knows_one_machine_only_says_so(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command[0], "spark2-31b-mtp", *command[1:]]) == 2
    assert f"{command[0]} is for a server on one machine, and spark2-31b-mtp has nodes: 2" in capsys.readouterr().err
