"""vLLM itself on two machines: two docker daemons in network namespaces, the image of `make image`, the tiny pair.

`make test-two-machines` runs it: loading the image into both daemons and two starts take minutes. It prints what each
fault looks like, and after how long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.docker_support import wait_for
from tests.real import SHARED
from tests.test_fleet_real import Driver
from tests.two_hosts import Bed, NoTwoHosts, two_hosts

pytestmark = pytest.mark.skipif(
    os.environ.get("GEMMASPEC_TWO_MACHINES") != "1", reason="takes minutes: make test-two-machines"
)

IMAGE = "gemmaspec/vllm-cpu:0.32.0"
PORT = 8425
URL = f"http://10.77.6.2:{PORT}/v1/chat/completions"
QUESTION = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Count from one to twenty, in words."}],
    "temperature": 0,
    "max_tokens": 48,
}


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    try:
        with two_hosts() as made:
            kept = subprocess.Popen(["docker", "save", IMAGE], stdout=subprocess.PIPE)
            loads = [
                subprocess.Popen(["docker", "-H", host.socket, "load"], stdin=subprocess.PIPE)
                for host in (made.one, made.two)
            ]
            assert kept.stdout
            while block := kept.stdout.read(1 << 20):
                for load in loads:
                    assert load.stdin
                    load.stdin.write(block)
            for load in loads:
                load.communicate()
            assert [kept.wait(), *(load.returncode for load in loads)] == [0, 0, 0]
            yield made
    except NoTwoHosts as why:
        pytest.skip(f"two machines on this one: {why}")


@pytest.fixture(scope="module")
def driver(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("driver")
    made = Driver(bed, folder)
    for name in ("tiny-target", "tiny-draft"):
        (folder / "state" / "tiny" / name / "config.json").unlink()
        (folder / "state" / "tiny" / name).rmdir()
        (folder / "state" / "tiny" / name).symlink_to((SHARED / "tiny" / name).resolve())
    (made.profiles / "pair.yaml").write_text(
        f"extends: tiny-cpu\nname: pair\nnodes: 2\nserve: {{port: {PORT}, bind: 0.0.0.0}}\npass_env: [VLLM_API_KEY]\n"
    )
    yield made
    made.run("down", "pair")


def said(what: str, began: float, text: str) -> None:
    sys.stdout.write(f"\n== {what}, after {time.monotonic() - began:.1f} s\n{text}\n")
    sys.stdout.flush()


def ask(timeout_s: float = 120) -> str:
    headers = {"Authorization": "Bearer not-a-real-key"}
    with httpx.Client(trust_env=False, timeout=timeout_s) as client:
        answer = client.post(URL, json=QUESTION, headers=headers)
    return str(answer.json()["choices"][0]["message"]["content"]) if answer.status_code == 200 else answer.text


def up(driver: Driver) -> str:
    began = time.monotonic()
    process = driver.begin("up", "pair", "--timeout", "1200", "--json")
    out, err = process.communicate(timeout=1300)
    said("up", began, err + out[:3000])
    assert process.returncode == 0
    return out


def test_two_machines_answer_as_one_and_what_breaks_is_seen(driver: Driver) -> None:
    document = json.loads(up(driver))
    began = time.monotonic()
    text = ask()
    said("answer", began, text)
    answer = document["answer"]
    said("first answer", began, json.dumps(answer))
    assert document["report"]["ranks"]["state"] == "same"
    found = driver.status()
    assert [node["same"] for node in found["nodes"]] == [True, True]

    began = time.monotonic()
    driver.bed.two.kill_all()
    found = driver.status()
    said("worker killed: status", began, found["why"])
    assert found["state"] == "exited"
    began = time.monotonic()
    said("worker killed: next request", began, _error())
    began = time.monotonic()
    done = driver.run("down", "pair")
    said("down", began, done.err)
    assert driver.running() == [[], []]


def test_a_pulled_cable_ends_within_a_bound(driver: Driver) -> None:
    up(driver)
    began = time.monotonic()
    watch = driver.begin("watch", "pair", "--interval", "2", "--hang", "60")
    client = subprocess.Popen(
        [sys.executable, "-c", f"import time; time.sleep(1)\n{_late()}"], stdout=subprocess.PIPE, text=True
    )
    time.sleep(3)
    driver.bed.cable(plugged=False)
    try:
        wait_for(lambda: driver.running() == [[], []], seconds=400)
        said("cable pulled: both ranks are gone", began, "")
        out, _ = client.communicate(timeout=60)
        said("cable pulled: the request", began, out)
    finally:
        driver.bed.cable(plugged=True)
        watch.terminate()
        said("cable pulled: watch", began, watch.communicate(timeout=60)[0])
        client.kill()
    said("cable pulled: status", began, driver.run("status", "pair").out)


def _late() -> str:
    here = Path(__file__).parent.parent
    return f"import sys; sys.path.insert(0, {str(here)!r}); from tests.test_two_machines import ask; print(ask(400))"


def _error() -> str:
    try:
        return ask()
    except httpx.HTTPError as error:
        return repr(error)
