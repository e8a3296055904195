"""fleet.yaml and what its hosts must agree on: pure."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gemmaspec.core.errors import PatchConflict, ProfileError, UsageError
from gemmaspec.core.fleet.agree import HostFacts, ImageFacts, hosts_disagree, images_disagree
from gemmaspec.core.fleet.hosts import Host, choose, host_line, parse_fleet
from gemmaspec.core.fleet.reports import reports_disagree, same_as

TWO = """\
hosts:
  spark-1: {docker: ssh://nv@spark-1, address: 192.168.100.10, interface: enp1s0f1np1, hca: [rocep1s0f1, roceP2p1s0f1]}
  spark-2: {docker: far, address: 192.168.100.11, interface: enp1s0f1np1}
"""


def problems(text: str) -> str:
    with pytest.raises(ProfileError) as raised:
        parse_fleet(text, file="fleet.yaml")
    return raised.value.message


def test_hosts_come_in_the_order_of_the_file() -> None:
    first, second = parse_fleet(TWO, file="fleet.yaml").hosts
    assert first == Host(
        name="spark-1",
        docker="ssh://nv@spark-1",
        address="192.168.100.10",
        interface="enp1s0f1np1",
        hca=("rocep1s0f1", "roceP2p1s0f1"),
    )
    assert (second.name, second.hca) == ("spark-2", ())


def test_a_host_is_written_as_it_is_read() -> None:
    hosts = parse_fleet(TWO, file="fleet.yaml").hosts
    assert "hosts:\n" + "".join(f"{host_line(host)}\n" for host in hosts) == TWO
    six = dataclasses.replace(hosts[0], address="fd00::1")
    assert parse_fleet(f"hosts:\n{host_line(six)}\n", file="f").hosts == (six,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "hosts: must be a map"),
        ("hosts: []", "hosts: must be a map"),
        ("[]", "must be a map with the key hosts"),
        ("host: {}", "unknown key 'host'; did you mean 'hosts'?"),
        (TWO.replace("address: 192.168.100.11", "adress: 192.168.100.11"), "'adress'; did you mean 'address'?"),
        (TWO.replace("spark-2", "spark-1"), "fleet.yaml:3: duplicate key 'spark-1'; the first one is in line 2"),
        (TWO.replace("100.11", "100.10"), "fleet.yaml:3: spark-2.address: 192.168.100.10 is also address of spark-1"),
        (
            TWO.replace("docker: far", "docker: ssh://nv@spark-1/"),
            "is also docker of spark-1; one daemon cannot be two",
        ),
        (TWO.replace("192.168.100.11", "spark-2.local"), "'spark-2.local' is not an IP address"),
        (TWO.replace("192.168.100.11", "127.0.0.1"), "cannot reach 127.0.0.1"),
        (TWO.replace("docker: far", "docker: http://far"), "must begin with ssh://"),
        (TWO.replace("docker: far", "docker: ssh://nv:secret@far"), "a password does not belong in this file"),
        (TWO.replace("docker: far", "docker: ssh://-oProxyCommand=x"), "is not a valid URL"),
        (TWO.replace("docker: far", "docker: 'tcp://far:99999'"), "is not a valid URL"),
        (TWO.replace("docker: far", "docker: -H"), "neither a docker context nor a URL"),
        (TWO.replace("docker: far", "docker: 7"), "must be text, not 7"),
        (TWO.replace("interface: enp1s0f1np1}", "interface: 'en p1'}"), "is not the name of a network interface"),
        (TWO.replace("[rocep1s0f1, roceP2p1s0f1]", "rocep1s0f1"), "must be a list of RDMA devices"),
        (TWO.replace("[rocep1s0f1, roceP2p1s0f1]", "['a b']"), "'a b' is not the name of an RDMA device"),
        (TWO.replace("spark-2:", "../x:"), "may have lower-case letters"),
        ("hosts:\n  a: 7\n", "a: must be a map"),
        ("hosts:\n  a: {docker: x}\n", "a: address is missing"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, said: str) -> None:
    assert said in problems(text)


def test_a_secret_in_an_address_is_not_repeated() -> None:
    assert "secret" not in problems(TWO.replace("docker: far", "docker: ssh://nv:secret@far"))


def test_every_mistake_is_listed() -> None:
    said = problems("hosts:\n  a: {docker: x}\n  B: {}\n").splitlines()
    assert len(said) == 3
    assert all(line.startswith("fleet.yaml:") for line in said)


def test_the_order_of_hosts_is_the_rank() -> None:
    fleet = parse_fleet(TWO, file="fleet.yaml")
    assert [host.name for host in choose(fleet, None, needed=2, profile="p")] == ["spark-1", "spark-2"]
    assert [host.name for host in choose(fleet, ["spark-2", "spark-1"], needed=2, profile="p")] == [
        "spark-2",
        "spark-1",
    ]


@pytest.mark.parametrize(
    ("names", "needed", "said", "hint"),
    [
        (["spark-1", "spark-3"], 2, "unknown host 'spark-3'; did you mean", "--hosts spark-1,spark-2"),
        (["spark-1", "spark-1"], 2, "names spark-1 twice", None),
        (["spark-1"], 2, "(nodes: 2), and --hosts names 1", "--hosts spark-1,spark-2"),
        (None, 3, "(nodes: 3), and fleet.yaml has 2", "add a host to fleet.yaml"),
    ],
)
def test_a_wrong_choice_names_the_next_command(
    names: list[str] | None, needed: int, said: str, hint: str | None
) -> None:
    with pytest.raises(UsageError) as raised:
        choose(parse_fleet(TWO, file="fleet.yaml"), names, needed=needed, profile="p")
    assert said in raised.value.message
    assert (hint or "") in (raised.value.hint or "")


def facts(host: str, **changed: Any) -> HostFacts:
    same: dict[str, Any] = {"docker": "28.2", "daemon": host, "architecture": "aarch64", "ahead_s": 0.0}
    return HostFacts(host=host, **same | changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"ahead_s": 29.0}, None),
        ({"docker": "27.0"}, None),
        ({"daemon": "a"}, "a and b are one docker daemon (a)"),
        ({"architecture": "x86_64"}, "a is aarch64, b is x86_64"),
        ({"ahead_s": 3600.0}, "the clocks of a and b are 60 min apart (b is ahead)"),
        ({"ahead_s": -60.0}, "the clocks of b and a are 60 s apart (a is ahead)"),
    ],
)
def test_hosts_that_cannot_carry_one_server_are_told(changed: dict[str, Any], said: str | None) -> None:
    wrong = hosts_disagree([facts("a"), facts("b", **changed)])
    assert said in wrong.message if wrong and said else wrong is None
    assert wrong is None or wrong.hint


def test_an_image_is_the_same_by_its_id_or_by_a_digest() -> None:
    one = ImageFacts(host="a", id="sha256:" + "1" * 64, digests=frozenset({"sha256:d"}))
    other = ImageFacts(host="b", id="sha256:" + "2" * 64)
    assert images_disagree("i", [one, dataclasses.replace(one, host="b")]) is None
    assert images_disagree("i", [one, dataclasses.replace(other, digests=one.digests)]) is None
    wrong = images_disagree("i", [one, other])
    assert wrong
    assert "a has sha256:111111111111…, b has sha256:222222222222…" in wrong.message


def report(**changed: Any) -> dict[str, Any]:
    file = {"path": "vllm/a.py", "sha256_after": "f" * 64, "detail": ""}
    return {
        "plan_sha256": "p" * 64,
        "vllm": {"version": "0.32.0", "path": "/one"},
        "requires": [{"name": "transformers", "found": "5.0"}],
        "patches": [{"patch": "x", "files": [file]}],
        "overlay_ms": 3,
    } | changed


def test_reports_are_equal_whatever_paths_and_times_they_have() -> None:
    other = report(vllm={"version": "0.32.0", "path": "/two"}, overlay_ms=9)
    assert reports_disagree("pair", {"a": report(), "b": other}) is None
    assert same_as({"a": report(), "b": other}, "b") is True


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (report(plan_sha256="q" * 64), "the plan is pppppppppppp… on a and qqqqqqqqqqqq… on b"),
        (report(vllm={"version": "0.33.0"}), "vllm is 0.32.0 on a and 0.33.0 on b"),
        (report(patches=[]), "vllm/a.py is ffffffffffff… on a and missing on b"),
        (None, "unknown: the launcher's report is missing on b"),
        ({}, "unknown: the launcher's report is damaged on b"),
    ],
)
def test_a_difference_between_ranks_names_file_and_host(other: dict[str, Any] | None, said: str) -> None:
    wrong = reports_disagree("pair", {"a": report(), "b": other})
    assert isinstance(wrong, PatchConflict)
    assert said in wrong.message
    assert same_as({"a": report(), "b": other}, "b") is (None if other is None else False)
    assert reports_disagree("pair", {"a": None, "b": None}), "two missing reports are not equal ones"
