"""vLLM itself on two machines: two docker daemons in network namespaces, the image of `make image`, the tiny pair.

`make test-two-machines` runs it: loading the image into both daemons and four starts take minutes. It prints what each
fault looks like, and after how long; docs/guides/two-machines.md has the figures.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gemmaspec.run.engine.fleet import FleetEngine
from gemmaspec.run.stack.nodes import HANG_S
from tests.real.test_fleet_real import Driver, put_file, server_of
from tests.support.docker_support import wait_for
from tests.support.printed import said
from tests.support.two_hosts import Bed, Machine, NoTwoHosts, two_hosts

pytestmark = [
    pytest.mark.skipif(os.environ.get("GEMMASPEC_TWO_MACHINES") != "1", reason="takes minutes: make test-two-machines"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"),
]

IMAGE = "gemmaspec/vllm-cpu:0.32.0"
PORT = 26025
PAIR, ALONE = f"http://10.79.6.2:{PORT}", f"http://127.0.0.1:{PORT}"
"""Rank 0 of the two, and the same profile on this machine."""
QUESTION = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Count from one to twenty, in words."}],
    "temperature": 0,
    "max_tokens": 48,
}
COUNTERS = ("drafts", "draft_tokens", "accepted_tokens")
START_S = 1200.0


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    try:
        with two_hosts(prefix="tm", net="10.79") as made:  # beside that of tests/real/test_fleet_real.py
            began = time.monotonic()
            _load_image(made)
            said("the image is in both daemons", began)
            yield made
    except NoTwoHosts as why:
        pytest.skip(f"two machines on this one: {why}")


def _load_image(bed: Bed) -> None:
    """Bring the image from this machine's daemon to both, at the same time."""
    with contextlib.ExitStack() as opened:
        kept = opened.enter_context(subprocess.Popen(["docker", "save", IMAGE], stdout=subprocess.PIPE))
        words = [["docker", "-H", host.socket, "load"] for host in (bed.one, bed.two)]
        loads = [opened.enter_context(subprocess.Popen(one, stdin=subprocess.PIPE)) for one in words]
        assert kept.stdout
        while block := kept.stdout.read(1 << 20):
            for load in loads:
                assert load.stdin
                load.stdin.write(block)
        for load in loads:
            load.communicate()
        assert [kept.wait(), *(load.returncode for load in loads)] == [0, 0, 0]


@pytest.fixture(scope="module")
def driver(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("driver")
    made = Driver(bed, folder)
    (made.profiles / "pair.yaml").write_text(
        f"extends: tiny-cpu\nname: pair\nnodes: 2\nserve: {{port: {PORT}, bind: 0.0.0.0}}\npass_env: [VLLM_API_KEY]\n"
    )
    # With TP 1: vLLM on a CPU refuses two workers on a machine with one NUMA node.
    (made.profiles / "alone.yaml").write_text(
        f"extends: tiny-cpu\nname: alone\nserve: {{port: {PORT}}}\npass_env: [VLLM_API_KEY]\n"
    )
    yield made
    made.run("down", "pair")


def ask(url: str = PAIR, timeout_s: float = 120, **other: Any) -> str:
    """Return the answer's text, or the error's."""
    headers = {"Authorization": "Bearer not-a-real-key"}
    try:
        with httpx.Client(trust_env=False, timeout=timeout_s) as client:
            answer = client.post(f"{url}/v1/chat/completions", json=QUESTION | other, headers=headers)
    except httpx.HTTPError as error:
        return repr(error)
    if answer.status_code != 200:
        return f"{answer.status_code}: {answer.text}"
    return str(answer.json()["choices"][0]["message"]["content"])


def health() -> int:
    """Return the status of /health; 0 if nothing answers."""
    try:
        return httpx.get(f"{PAIR}/health", timeout=5, trust_env=False).status_code
    except httpx.HTTPError:
        return 0


def counters(url: str) -> list[float]:
    """Return the speculative counters of vLLM."""
    text = httpx.get(f"{url}/metrics", timeout=30, trust_env=False).text
    found = []
    for name in COUNTERS:
        row = re.search(rf"^vllm:spec_decode_num_{name}_total{{[^}}]*}} ([\d.e+]+)$", text, re.M)
        assert row, name
        found.append(float(row[1]))
    return found


def measured(url: str, what: str) -> tuple[str, list[float]]:
    """Return the answer to the question, and by how much it raised each counter."""
    before, began = counters(url), time.monotonic()
    text = ask(url)
    raised = [after - was for was, after in zip(before, counters(url), strict=True)]
    said(f"{what}: answer", began, f"{text}\n{dict(zip(COUNTERS, raised, strict=True))}")
    return text, raised


def up(driver: Driver, name: str = "pair", **environment: str) -> dict[str, Any]:
    """Start a profile; return what `up --json` says."""
    began = time.monotonic()
    process = driver.begin("up", name, "--timeout", str(START_S), "--json", **environment)
    out, err = process.communicate(timeout=START_S + 100)
    said(f"up {name}", began, err[-3000:])
    assert process.returncode == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def refused(driver: Driver, what: str, code: int) -> str:
    """Return the error of an `up` that must start nothing."""
    began = time.monotonic()
    done = driver.run("up", "pair")
    said(what, began, done.err)
    assert done.code == code, done.err
    assert driver.running() == [[], []]
    return done.err


def test_hosts_that_cannot_carry_one_server_start_nothing(driver: Driver) -> None:
    fleet = driver.profiles / "fleet.yaml"
    right = fleet.read_text()
    fleet.write_text(right.replace(driver.bed.two.url, "tcp://10.79.7.9:2375"))  # nobody has this address
    try:
        assert "two: docker is not answering" in refused(driver, "a host does not answer", 4)
    finally:
        fleet.write_text(right)
    with _another_image(driver.bed.two):
        assert f"the image {IMAGE} is not the same on all hosts" in refused(driver, "another image", 4)


@contextlib.contextmanager
def _another_image(host: Machine) -> Iterator[None]:
    """Give the image's name to another one for a while."""
    repository, tag = IMAGE.split(":")
    with contextlib.closing(host.client()) as client:
        right = client.images.get(IMAGE)
        client.api.import_image_from_data(b"\0" * 1024, repository=repository, tag=tag)
        wrong = client.images.get(IMAGE)
        try:
            assert wrong.id != right.id
            yield
        finally:
            right.tag(repository, tag=tag)
            client.images.remove(str(wrong.id))


def test_two_machines_answer_as_one_until_a_worker_is_killed(driver: Driver) -> None:
    here = {"DOCKER_HOST": os.environ.get("DOCKER_HOST", "")}
    up(driver, "alone", **here)
    try:
        expected = measured(ALONE, "one machine, TP 1")
    finally:
        driver.run("down", "alone", **here)
    document = up(driver)
    assert document["report"]["ranks"]["target"]
    assert measured(PAIR, "two machines, TP 2") == expected
    assert expected[1][2] > 0
    assert [node["same"] for node in driver.status()["nodes"]] == [True, True]

    began = time.monotonic()
    driver.bed.two.kill_all()
    found = driver.status()
    said("worker killed: status", began, f"{found['state']}: {found['why']}; /health says {health()}")
    assert found["state"] == "exited"
    began = time.monotonic()
    said("worker killed: next request", began, ask())
    wait_for(lambda: driver.running() == [[], []], seconds=HANG_S)
    said("worker killed: the head has ended by itself", began, driver.run("logs", "pair", "--tail", "3").out)
    began = time.monotonic()
    said("worker killed: down", began, driver.run("down", "pair").err)


def test_a_killed_head_leaves_a_worker_that_watch_stops(driver: Driver) -> None:
    up(driver)
    began = time.monotonic()
    driver.bed.one.kill_all()
    found = driver.status()
    said("head killed: status", began, f"{found['state']}: {found['why']}")
    assert found["state"] == "exited"
    assert [len(names) for names in driver.running()] == [0, 1]
    began = time.monotonic()
    with _watching(driver):
        wait_for(lambda: driver.running() == [[], []], seconds=120)
        said("head killed: watch has stopped the worker", began)


def test_a_pulled_cable_ends_within_a_bound(driver: Driver) -> None:
    up(driver)
    with _watching(driver):
        client = _asking_for_long()
        time.sleep(3)
        driver.bed.cable(plugged=False)
        began = time.monotonic()
        try:
            seen = {health() for _ in range(3)}
            said("cable pulled: /health", began, str(seen))
            wait_for(lambda: not driver.bed.one.running(), seconds=2 * HANG_S)
            head = said("cable pulled: the head has ended", began)
            wait_for(lambda: driver.running() == [[], []], seconds=120)
            said("cable pulled: watch has stopped the worker", began)
            said("cable pulled: the request", began, client.communicate(timeout=60)[0])
        finally:
            driver.bed.cable(plugged=True)
            client.kill()
    assert HANG_S - 10 < head < HANG_S + 60
    found = driver.status()
    said("cable pulled: status", began, f"{found['state']}: {found['why']}")
    kept = driver.run("logs", "--previous", "pair").out
    assert "TimeoutError" in kept
    said("cable pulled: log", began, "\n".join(line for line in kept.splitlines() if "ERROR" in line)[:3000])


@contextlib.contextmanager
def _watching(driver: Driver) -> Iterator[None]:
    """Run `watch` with its defaults, and print its lines in the end."""
    watch = driver.begin("watch", "pair", "--hang", "60")
    try:
        yield
    finally:
        watch.terminate()
        sys.stdout.write(f"\n== watch\n{''.join(watch.communicate(timeout=60))}\n")


def _asking_for_long() -> subprocess.Popen[str]:
    """Ask for many tokens, and print the answer or the error, and how long it took."""
    here = Path(__file__).parent.parent.parent
    code = f"import sys, time; sys.path.insert(0, {str(here)!r}); from tests.real.test_two_machines import PAIR, ask; t = time.time()"
    code += "; print(ask(PAIR, 600, max_tokens=900, ignore_eos=True)[:300], f'after {time.time() - t:.0f} s')"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_another_plan_on_one_host_ends_there_and_is_told(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy", "VLLM_API_KEY", "GEMMASPEC_STATE"):
        monkeypatch.setenv(name, driver.environment[name])
    server = server_of(driver)  # of the starts before
    engine = FleetEngine(server.nodes)
    try:
        for member in engine.members(server):
            member.engine.create(member.server)
        put_file(driver.bed.two, "plan.json", other_plan())
        began = time.monotonic()
        for member in engine.members(server):
            member.engine.start_created(member.server)
        wait_for(lambda: not driver.running()[1], seconds=60)
        log = [line for line in engine.logs(server) if "gemmaspec: " in line]
        said("another plan", began, "\n".join(log))
        state = engine.state(server)  # a rank that has ended ends the server
        assert (state.status, state.exit_code) == ("exited", 5)
        assert any("two" in line and "is the plan" in line for line in log)
    finally:
        engine.stop(server)
        engine.close()


def other_plan() -> str:
    """Return a plan that is valid, but not that of the pair."""
    from gemmaspec.core.profile.load import load_profile
    from gemmaspec.run.stack.build import build_stack

    return build_stack(load_profile("tiny-cpu", no_spec=True), form="process").files["plan.json"]
