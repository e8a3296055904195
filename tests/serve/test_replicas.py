"""Replicas behind the real HAProxy, with the fake vLLM: changed one at a time under load."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from gemmaspec.core import data
from gemmaspec.core.errors import EnvironmentMissing, ProfileError, UsageError
from gemmaspec.core.files import state_dir
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.load import Loaded, load_profile, replica_of
from gemmaspec.core.profile.replica import bound_environment, devices_of, router_of
from gemmaspec.run.runtime.spec import router_program
from gemmaspec.run.stack.build import build_stack, profile_plan
from gemmaspec.run.stack.router import ADMIN_SOCKET
from gemmaspec.serve.prepare import prepare
from gemmaspec.serve.replicas import _ensure_cores
from tests.support import fake_runtime
from tests.support.fake_runtime import Fake
from tests.support.stream_load import load


def _free_block() -> int:
    """Return the first of ten free ports: a router, its own, and its replicas'; another suite has others."""
    for first in random.sample(range(20_000, 32_000, 10), 50):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + 10):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("no ten ports in a row are free")


PORT = _free_block()
HAPROXY = pytest.mark.skipif(
    not router_program(), reason="HAProxy is not installed (tools/setup-tests.sh installs it on Debian)"
)


@pytest.fixture
def pair(fake: Fake) -> Iterator[Fake]:
    """Two replicas behind a router; what the test leaves is stopped."""
    fake_runtime.make_models()
    fake.profile("pair", PORT)
    with (fake.profiles / "pair.yaml").open("a") as file:
        file.write("replicas: 2\nrouter: {drain_seconds: 20}\n")
    yield fake
    fake.run("down", "pair")


def _status(fake: Fake) -> dict[str, dict[str, object]]:
    found = json.loads(fake.run("status", "--json").out)
    return {one["name"]: one for one in (*found["stacks"], *found.get("routers", ()))}


SERVING = {"pair-1": "gets requests", "pair-2": "gets requests"}
BOTH = [f"{action} pair-{index}" for index in (1, 2) for action in ("remove", "drain", "replace", "add")]


@HAPROXY
def test_no_change_cuts_a_request_and_a_death_cuts_only_its_own_streams(pair: Fake) -> None:
    """One story, since every start takes a second: changed, changed in vain, rolled back, killed, started again, ended."""
    address = f"http://127.0.0.1:{PORT}/v1"
    first = pair.run("up", "pair")
    assert (first.code, address in first.out) == (0, True), first.err
    _commands_for_the_whole(pair)
    with load(address, "model-pair", clients=4, tokens=12) as found:
        changed = pair.run("up", "pair", "--set", "env.A=1")
        failed = pair.run("up", "pair", "--set", "env.FAKE_VLLM_EXIT=3")
        back = pair.run("rollback", "pair", "--json")
    assert (changed.code, failed.code, back.code) == (0, 6, 0), changed.err + failed.err + back.err
    for said in ("stopped at: replace pair-1", "pair-1: runs again as before", "pair-2: unchanged"):
        assert said in failed.err
    assert found.fates.total() > 10
    assert set(found.fates) == {"whole"}, f"{found} {found.reasons}"
    assert _steps()[5:] == [*BOTH, *BOTH[:3], "add pair-1", *BOTH]
    assert _status(pair)["pair"]["replicas"] == SERVING

    with load(address, "model-pair", clients=4, tokens=12) as found:
        threading.Event().wait(0.8)
        os.kill(int(str(_status(pair)["pair-2"]["detail"]).split()[1]), 9)
        threading.Event().wait(1.0)
        again = pair.run("up", "pair")
    assert "changed   pair-2\n" in again.out, again.err
    lost = found.fates["cut"] + found.fates["refused"]
    assert lost <= 4, f"one for each client that pair-2 had: {found} {found.reasons}"

    assert "name one: pair-1, pair-2" in pair.run("logs", "--previous", "pair").err
    assert json.loads(pair.run("down", "pair", "--json").out)["was_running"] is True
    assert {one["state"] for one in _status(pair).values()} == {"stopped"}


@HAPROXY
def test_a_request_of_death_ends_one_replica_and_the_other_serves(pair: Fake) -> None:
    assert pair.run("up", "pair", "--set", "env.FAKE_VLLM_DIES_OF=POISON").code == 0
    body = {"model": "model-pair", "messages": [{"role": "user", "content": "POISON"}]}
    address = f"http://127.0.0.1:{PORT}/v1/chat/completions"
    assert httpx.post(address, json=body, timeout=30, trust_env=False).status_code == 502
    found = _status(pair)
    assert sorted(str(found[one]["state"]) for one in ("pair-1", "pair-2")) == ["exited", "ready"], found
    body["messages"] = [{"role": "user", "content": "hello"}]
    assert [httpx.post(address, json=body, timeout=30, trust_env=False).status_code for _ in range(4)] == [200] * 4


@HAPROXY
def test_a_killed_router_is_named_and_up_starts_it_again_without_touching_a_replica(pair: Fake) -> None:
    assert pair.run("up", "pair").code == 0
    before = [_status(pair)[one]["detail"] for one in SERVING]
    routers = [one for one in psutil.process_iter(["name", "cwd"]) if one.info["name"] == "haproxy"]
    (router,) = [one for one in routers if Path(one.info["cwd"] or "/").is_relative_to(state_dir())]
    router.kill()
    router.wait(30)
    found = pair.run("status", "pair")
    assert found.code != 0
    assert "router of pair is exited" in found.out, found.out
    again = pair.run("up", "pair")
    assert again.code == 0, again.err
    answer = httpx.get(f"http://127.0.0.1:{PORT}/v1/models", timeout=30, trust_env=False)
    assert answer.status_code == 200
    after = _status(pair)
    assert [after[one]["detail"] for one in SERVING] == before
    assert after["pair"]["replicas"] == SERVING


@HAPROXY
def test_nobody_can_add_a_worker_to_haproxy(pair: Fake) -> None:
    """Its commands are at a socket that only its owner can open; what a page sends reaches a replica, as any request."""
    router = f"http://127.0.0.1:{PORT}"
    assert pair.run("up", "pair").code == 0
    answer = httpx.post(f"{router}/add_worker", params={"url": "http://127.0.0.1:9"}, timeout=10)
    assert answer.status_code >= 400
    socket_file = next(state_dir().rglob(ADMIN_SOCKET))
    assert stat.S_IMODE(socket_file.stat().st_mode) == 0o600
    found = _status(pair)["pair"]
    assert found["replicas"] == SERVING


def _commands_for_the_whole(pair: Fake) -> None:
    """The name of a profile means all of its replicas, or the error says what to type."""
    waited = json.loads(pair.run("status", "pair", "--wait", "--json").out)
    assert waited["unchanged"] == ["pair-1", "pair-2"]
    lines = pair.run("logs", "pair").out.splitlines()
    assert {line.partition(" | ")[0] for line in lines} == {"pair-1", "pair-2"}
    scraped = pair.run("connect", "prometheus", "pair").out
    assert [name in scraped for name in ("pair-1", "pair-2")] == [True, True]
    top = json.loads(pair.run("top", "pair", "--once", "--json").out)
    assert [one["name"] for one in top["stacks"]] == ["pair-1", "pair-2"]
    one = json.loads(pair.run("status", "pair-1", "--wait", "--json").out)["address"]
    for words, said in (
        (("bench", "pair"), "bench works on one server"),
        (("bench", "pair", "--running"), f"bench pair --url {one}"),
        (("bench", "pair-1"), "pair-1 is a replica of pair, and bench takes a profile"),
        (("up", "pair-1"), "pair-1 is a replica of pair, and up takes a profile"),
        (("tune", "pair", "--dry-run"), "tune pair --set replicas=1 --set router="),
    ):
        done = pair.run(*words)
        assert (done.code, said in done.err) == (2, True), done.err


def _steps() -> list[str]:
    """Return the steps in the audit."""
    lines = (state_dir() / "stacks" / "pair" / "audit.log").read_text().splitlines()
    return [line.partition("): ")[2].partition(":")[0] for line in lines]


def _loaded(profile: str, *overrides: str) -> Loaded:
    return load_profile(profile, overrides=overrides)


def test_a_replica_has_its_own_name_port_and_gpus_and_the_plan_of_the_profile() -> None:
    whole = _loaded("nvidia-31b-mtp", "replicas=2", "serve.tensor_parallel_size=2")
    second = replica_of(whole, 2).profile
    assert (second.name, second.serve.port, second.serve.bind) == ("nvidia-31b-mtp-2", 8002, "127.0.0.1")
    assert (second.devices, second.replicas, second.router) == ([2, 3], 1, None)
    shelf = Shelf(data.patch_folders())
    assert profile_plan(second, shelf) == profile_plan(whole.profile, shelf)
    assert [devices_of(_loaded("nvidia-31b-mtp", "replicas=2", "devices=[5,3]").profile, one) for one in (1, 2)] == [
        [5],
        [3],
    ]
    router = router_of(whole.profile)
    assert (router.port, router.metrics_port, router.policy) == (8000, 8003, "conversation")


def test_a_container_gets_only_the_gpus_of_its_replica() -> None:
    text = build_stack(replica_of(_loaded("nvidia-31b-mtp", "replicas=2"), 2), form="folder").files["compose.yaml"]
    assert 'device_ids:\n                - "1"\n' in text
    assert "count: all" not in text


def test_each_replica_computes_on_its_own_cores() -> None:
    whole = _loaded("tiny-cpu", "replicas=2", "cpus=[0, '2-3,5']")
    for index, cores in ((1, "0"), (2, "2-3,5")):
        one = replica_of(whole, index)
        assert f'VLLM_CPU_OMP_THREADS_BIND: "{cores}"' in build_stack(one, form="folder").files["compose.yaml"]
        server, _, _ = prepare(one, engine="process")
        assert server.environment["VLLM_CPU_OMP_THREADS_BIND"] == cores
    two_ranks = _loaded(
        "tiny-cpu", "serve.tensor_parallel_size=2", "speculative.draft_tensor_parallel_size=2", "cpus=[0-1|2-3]"
    )
    assert bound_environment(two_ranks.profile) == {"VLLM_CPU_OMP_THREADS_BIND": "0-1|2-3"}
    assert bound_environment(_loaded("tiny-cpu").profile) == {}
    with pytest.raises(ProfileError, match="cpus: is for machines without GPUs"):
        _loaded("nvidia-31b-mtp", "cpus=[0]")


def test_cores_that_the_machine_does_not_have_are_refused_before_anything_is_touched() -> None:
    here = os.cpu_count() or 0
    told: list[str] = []
    with pytest.raises(
        EnvironmentMissing, match=f"cpus lists core {here}, but this machine has the cores 0 to {here - 1}"
    ):
        _ensure_cores(_loaded("tiny-cpu", "replicas=2", f"cpus=[0, {here}]"), told.append)
    assert told == []
    _ensure_cores(_loaded("tiny-cpu", "replicas=2"), told.append)
    assert told == ["warning: vLLM computes on the same cores for every replica; share them out with cpus: [0-3, 4-7]"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["router.policy=leastconn"], "router: is only used with replicas: 2 or more"),
        (["replicas=2", "router.policy=cache_aware"], "router.policy: "),
        (["replicas=2", "router.port=8322"], "8322 is the port of replica 1"),
        (["replicas=2", "router.metrics_port=8321"], "8321 is the router's own port"),
        (["replicas=2", "serve.port=65534"], "leaves no ports for 2 replicas"),
        (["replicas=17"], "replicas: "),
        (["devices=[0]"], "a cpu has none"),
        (["replicas=2", "cpus=[0-3]"], "cpus: needs an entry for each of 2 server(s), and has 1"),
        (["replicas=2", "cpus=[0-3, 2]"], "cpus: core 2 is listed for replica 1 and for replica 2"),
        (["cpus=[3-0]"], "3-0 is not an ascending list of cores for each of 1 ranks"),
        (["cpus=[0|1]"], "0|1 is not an ascending list of cores for each of 1 ranks"),
        (["cpus=[all]"], "'all' is not a list of CPU cores like 0-15"),
        (["cpus=[1]", "env.VLLM_CPU_OMP_THREADS_BIND=1"], "VLLM_CPU_OMP_THREADS_BIND: contradicts cpus"),
    ],
)
def test_what_a_profile_cannot_ask_of_replicas(overrides: list[str], said: str) -> None:
    with pytest.raises(ProfileError) as error:
        _loaded("tiny-cpu", *overrides)
    assert said in error.value.message


def test_more_replicas_than_a_machine_has_gpus() -> None:
    for overrides in (["replicas=9"], ["replicas=5", "serve.tensor_parallel_size=2"]):
        with pytest.raises(ProfileError, match="but h100 has 8"):
            _loaded("nvidia-31b-mtp", "machine=h100", *overrides)
    with pytest.raises(ProfileError, match="lists 1 GPUs, but 2 replicas use 1 each"):
        _loaded("nvidia-31b-mtp", "replicas=2", "devices=[0]")


def test_a_command_for_one_server_says_so() -> None:
    from gemmaspec.serve.decide import UpRequest
    from gemmaspec.serve.observe import load_request

    with pytest.raises(UsageError, match="has 2 replicas, and this command works on one server"):
        load_request(UpRequest(profile="tiny-cpu", overrides=("replicas=2",)))
    assert (
        load_request(UpRequest(profile="tiny-cpu", overrides=("replicas=2",), replica=2)).profile.name == "tiny-cpu-2"
    )
    with pytest.raises(UsageError, match="no replica 3 any more"):
        load_request(UpRequest(profile="tiny-cpu", overrides=("replicas=2",), replica=3))


def test_haproxy_reads_its_configuration(tmp_path: Path) -> None:
    import subprocess

    from gemmaspec.run.stack.router import haproxy_config

    program = router_program()
    if not program:
        pytest.skip("HAProxy is not installed (tools/setup-tests.sh installs it on Debian)")
    for policy in ("leastconn", "round_robin", "conversation"):
        text = haproxy_config(bind="::1", port=8000, metrics_port=8003, policy=policy, first_port=8001)
        (tmp_path / "haproxy.cfg").write_text(text)
        done = subprocess.run([program, "-c", "-f", "haproxy.cfg"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert shutil.which(program)
