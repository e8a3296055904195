"""Rows of `doctor --hosts`: pure."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest

from gemmaspec.check.doctor.hosts import HostReading, fleet_lines, parse_seen, rows
from gemmaspec.core import data
from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.fleet.agree import HostFacts
from gemmaspec.core.fleet.hosts import Host

COMMIT = "c" * 40
SEEN: dict[str, Any] = {
    "interfaces": {
        "lo": {"state": "unknown", "mtu": 65536, "addresses": ["127.0.0.1"]},
        "cx": {"state": "up", "mtu": 9000, "addresses": ["10.0.0.1"]},
    },
    "devices": {"roce0": ["cx"]},
    "models": {"org/m": [COMMIT]},
    "free": 500 * 1024**3,
    "sees_cache": True,
    "nccl": "2.30.7",
}


def reading(name: str = "a", *, interface: str = "cx", hca: tuple[str, ...] = ("roce0",), **seen: Any) -> HostReading:
    return HostReading(
        host=Host(name=name, docker=name, address="10.0.0.1", interface=interface, hca=hca),
        facts=HostFacts(host=name, docker="28", daemon=name, architecture="aarch64", ahead_s=0.2),
        image="sha256:" + "1" * 64,
        seen=parse_seen(json.dumps(SEEN | seen)),
    )


def said(*readings: HostReading, state: str = "failed") -> str:
    found = rows(readings, image="i:1", revisions={"org/m": COMMIT})
    return "\n".join(f"{row.name}: {row.message}" for row in found if row.state == state)


def test_machines_that_fit_have_no_failed_row() -> None:
    assert said(reading("a"), reading("b")) == ""
    assert said(reading("a"), reading("b"), state="warning") == ""
    assert "a link: cx is up with 10.0.0.1, MTU 9000" in said(reading("a"), state="ok")


@pytest.mark.parametrize(
    ("one", "state", "text"),
    [
        (reading(interface="eth9"), "failed", "a link: it has no interface eth9 (it has: lo, cx)"),
        (reading(interface="lo"), "failed", "a link: lo does not have 10.0.0.1; cx has it"),
        (
            reading(interfaces={"cx": {"state": "down", "mtu": 1, "addresses": ["10.0.0.1"]}}),
            "failed",
            "a link: cx is down",
        ),
        (reading(hca=("roce1",)), "failed", "a rdma: it has no RDMA device roce1 (it has: roce0)"),
        (reading(hca=()), "warning", "a rdma: it has roce0, and fleet.yaml names none"),
        (reading(free=1024**3), "warning", "a disk: 1 GiB free"),
        (reading(models={}), "warning", "a models: org/m is not in its cache"),
        (reading(models={"org/m": ["d" * 40]}), "warning", "not the revision cccccccccccc"),
        (reading(sees_cache=False), "skipped", "a models: the profile names no folder"),
        (reading(nccl="2.28.9"), "warning", "a nccl: NCCL 2.28.9 between machines: a replayed CUDA graph can hang"),
        (reading(nccl="2.30.4"), "ok", "a nccl: 2.30.4"),
        (dataclasses.replace(reading(), image=None), "failed", "a image: i:1 is missing"),
        (dataclasses.replace(reading(), seen=None, unseen="no python"), "skipped", "a link: no python"),
    ],
)
def test_what_does_not_fit_is_named(one: HostReading, state: str, text: str) -> None:
    assert text in said(one, state=state)


def test_hosts_are_compared() -> None:
    slow = reading("b", interfaces={"cx": {"state": "up", "mtu": 1500, "addresses": ["10.0.0.1"]}})
    assert "the MTU of the link is not the same: a has 9000, b has 1500" in said(reading("a"), slow)
    other = dataclasses.replace(reading("b"), image="sha256:" + "2" * 64)
    assert "the image is not the same: a has sha256:111" in said(reading("a"), other)


def test_two_versions_of_nccl_fail_and_an_old_one_is_no_matter_without_graphs() -> None:
    old = reading("b", nccl="2.28.9")
    assert "nccl: not the same on all hosts: a has 2.30.7, b has 2.28.9" in said(reading("a"), old)
    assert {row.state for row in rows([old], image="i:1", revisions={}, eager=True) if row.name == "b nccl"} == {"ok"}


def test_fleet_yaml_is_printed_as_the_machines_are() -> None:
    assert fleet_lines([reading(interface="lo", hca=())]) == [
        "hosts:",
        "  a: {docker: a, address: 10.0.0.1, interface: cx, hca: [roce0]}",
    ]


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps(SEEN | {"interfaces": {"\x1b[2J": {}}}), "x" * 9])
def test_what_a_container_prints_is_not_trusted(text: str) -> None:
    with pytest.raises(EnvironmentMissing):
        parse_seen(text)


def test_this_machine_describes_itself() -> None:
    told = subprocess.run([sys.executable, data.LOOK, "org/m"], capture_output=True, text=True, check=True).stdout
    seen = parse_seen(told)
    assert "127.0.0.1" in seen.interfaces["lo"].addresses
    assert seen.free > 0
