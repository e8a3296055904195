"""The comparison of ranks, with real sockets on loopback: `ranks.py` by itself, and the launcher as two processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gemmaspec import data
from gemmaspec.launcher import rank_facts, ranks
from gemmaspec.launcher.ranks import Answer, Card, Place
from tests.launching import Place as Environment
from tests.launching import make_place, patch_of, plan_of, write_package

FACTS = {"plan": "a" * 64, "vllm": "0.32.0", "vllm/v1/core.py": "b" * 64, "target": "", "argument --dtype": "bfloat16"}


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as found:
        yield found


class Meeting:
    """Ranks of one server on this machine, each in a thread."""

    def __init__(self, pool: ThreadPoolExecutor, port: int, nodes: int = 2) -> None:
        self.pool, self.port, self.nodes = pool, port, nodes
        self.said: list[str] = []

    def go(self, rank: int, wait_s: float = 60, **more: Any) -> Future[Answer]:
        place = Place(rank=rank, nodes=self.nodes, master="127.0.0.1", port=self.port)
        card = Card(**{"rank": rank, "node": f"spark-{rank}", "facts": FACTS, **more})
        return self.pool.submit(ranks.meet, place, card, wait_s=wait_s, say=self.said.append)

    def wait_for(self, text: str) -> None:
        until = time.monotonic() + 60
        while not any(text in line for line in self.said):
            assert time.monotonic() < until, self.said
            time.sleep(0.01)

    def send(self, content: bytes, *, keep: bool = False) -> socket.socket:
        """Connect as a hostile peer."""
        until = time.monotonic() + 60
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", self.port), timeout=2)
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.02)
        try:
            connection.sendall(content)
        except OSError:
            assert not keep
        return connection


@pytest.fixture
def meeting(pool: ThreadPoolExecutor, port: int) -> Meeting:
    return Meeting(pool, port)


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_that_are_the_same_go_on_whoever_comes_first(meeting: Meeting, first: int) -> None:
    early = meeting.go(first)
    meeting.wait_for("waits for")
    late = meeting.go(1 - first)
    assert early.result(60) == late.result(60) == Answer(code=0, lines=(), nodes={0: "spark-0", 1: "spark-1"})


def test_a_difference_stops_every_rank_with_the_same_lines(pool: ThreadPoolExecutor, port: int) -> None:
    meeting = Meeting(pool, port, nodes=3)
    other = {**FACTS, "vllm/v1/core.py": "c" * 64, "argument --dtype": "float16"}
    found = [meeting.go(0), meeting.go(1), meeting.go(2, facts=other)]
    answers = [one.result(60) for one in found]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0].code == 5
    assert answers[0].lines == (
        "rank 2 (spark-2) differs from rank 0 (spark-0) in argument --dtype: float16, not bfloat16",
        "rank 2 (spark-2) differs from rank 0 (spark-0) in vllm/v1/core.py: cccccccccccc…, not bbbbbbbbbbbb…",
    )


def test_a_file_that_one_rank_lacks_is_a_difference(meeting: Meeting) -> None:
    less = {name: text for name, text in FACTS.items() if name != "vllm/v1/core.py"}
    found = meeting.go(0), meeting.go(1, facts=less)
    assert "in vllm/v1/core.py: not there, not bbbbbbbbbbbb…" in found[0].result(60).lines[0]
    assert found[1].result(60).code == 5


def test_a_revision_that_one_rank_does_not_know_is_no_difference(meeting: Meeting) -> None:
    found = meeting.go(0), meeting.go(1, facts={**FACTS, "target": "d" * 40})
    assert [one.result(60).code for one in found] == [0, 0]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("code", [5, 6])
def test_a_rank_that_cannot_start_stops_the_others(meeting: Meeting, rank: int, code: int) -> None:
    waiting = meeting.go(1 - rank)
    failing = meeting.go(rank, facts={}, failed="one does not fit vllm 0.32.0", code=code)
    line = f"rank {rank} (spark-{rank}) cannot start: one does not fit vllm 0.32.0"
    assert waiting.result(60) == failing.result(60)
    assert (waiting.result().code, waiting.result().lines) == (code, (line,))


@pytest.mark.parametrize("rank", [0, 1])
def test_nobody_comes(meeting: Meeting, rank: int) -> None:
    answer = meeting.go(rank, wait_s=0.3).result(60)
    assert answer.code == 7
    wanted = "rank 1 did not connect to" if rank == 0 else "rank 0 did not answer at"
    assert answer.lines[0].startswith(f"{wanted} 127.0.0.1:{meeting.port}")


HOSTILE = {
    "garbage": b"\x00\xff GET / HTTP/1.1\r\n\r\n",
    "not an object": b"[1]\n",
    "deep": b"[" * 100_000 + b"\n",
    "huge": b"x" * (ranks.LINE_LIMIT + 70_000),
    "rank 0": b'{"gemmaspec": 1, "rank": 0, "node": "x", "facts": {}}\n',
    "rank 2": b'{"gemmaspec": 1, "rank": 2, "node": "x", "facts": {}}\n',
    "a rank that is true": b'{"gemmaspec": 1, "rank": true, "node": "x", "facts": {}}\n',
    "of another server": b'{"gemmaspec": 1, "rank": 1, "nodes": 4, "node": "x", "facts": {}}\n',
    "facts that are a list": b'{"gemmaspec": 1, "rank": 1, "node": "x", "facts": [1]}\n',
    "a fact that is a number": b'{"gemmaspec": 1, "rank": 1, "node": "x", "facts": {"plan": 1}}\n',
    "a long node": b'{"gemmaspec": 1, "rank": 1, "node": "' + b"x" * 500 + b'", "facts": {}}\n',
    "many facts": json.dumps({"gemmaspec": 1, "rank": 1, "node": "x", "facts": {str(n): "" for n in range(2001)}})
    .encode() + b"\n",
    "gone at once": b"",
    "gone in a line": b'{"gemmaspec": 1,',
}  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_peer_is_closed_and_the_real_rank_is_waited_for(meeting: Meeting, content: bytes) -> None:
    head = meeting.go(0)
    meeting.send(content).close()
    meeting.wait_for("closed a connection")
    worker = meeting.go(1)
    assert (head.result(60).code, worker.result(60).code) == (0, 0)


def test_a_silent_peer_keeps_nobody_waiting(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "TALK_S", 0.2)
    head = meeting.go(0)
    with meeting.send(b"", keep=True) as silent:
        meeting.wait_for("sent nothing")
        assert silent.recv(1) == b""
    assert meeting.go(1).result(60).code == head.result(60).code == 0


def test_too_many_silent_peers_lose_their_places(meeting: Meeting) -> None:
    head = meeting.go(0)
    silent = [meeting.send(b"", keep=True) for _ in range(ranks.MOST_SPEAKING + 2)]
    meeting.wait_for("too many connections")
    assert meeting.go(1).result(60).code == head.result(60).code == 0
    for one in silent:
        one.close()


def test_a_second_host_with_the_same_rank_is_refused(pool: ThreadPoolExecutor, port: int) -> None:
    meeting = Meeting(pool, port, nodes=3)
    head, first = meeting.go(0), meeting.go(1)
    meeting.wait_for("rank 1 (spark-1) is connected")
    second = meeting.go(1, node="spark-9").result(60)
    assert second.code == 6
    assert second.lines == ("rank 1 is already connected: spark-1; each host has a rank of its own",)
    assert meeting.go(2).result(60).code == first.result(60).code == head.result(60).code == 0


def test_a_rank_of_another_server_is_told_at_once(meeting: Meeting, pool: ThreadPoolExecutor) -> None:
    head = meeting.go(0)
    stranger = Meeting(pool, meeting.port, nodes=4).go(1).result(60)
    assert stranger.code == 6
    assert "it belongs to a server with another number of nodes" in stranger.lines[0]
    assert meeting.go(1).result(60).code == head.result(60).code == 0


def test_a_rank_that_goes_away_may_come_again(pool: ThreadPoolExecutor, port: int) -> None:
    meeting = Meeting(pool, port, nodes=3)
    head = meeting.go(0)
    meeting.send(b'{"gemmaspec": 1, "rank": 1, "node": "spark-1", "facts": {}}\n').close()
    meeting.wait_for("rank 1 (spark-1) disconnected")
    again = [meeting.go(rank) for rank in (1, 2)]
    assert [one.result(60).code for one in (head, *again)] == [0, 0, 0]


def answering(port: int, content: bytes) -> threading.Thread:
    """A peer that is not rank 0, at rank 0's address, for one connection."""
    server = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        with server:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(content)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "content",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b'{"gemmaspec": 1, "code": 0}\n',
        b'{"gemmaspec": 1, "code": 3, "lines": [], "nodes": {}}\n',
        b'{"gemmaspec": 1, "code": 0, "lines": [1], "nodes": {}}\n',
        b'{"gemmaspec": 1, "code": 0, "lines": [], "nodes": {"x": "y"}}\n',
        b"x" * (ranks.LINE_LIMIT + 70_000),
    ],
)
def test_what_is_not_rank_0_starts_nobody(meeting: Meeting, content: bytes) -> None:
    peer = answering(meeting.port, content)
    answer = meeting.go(1).result(60)
    peer.join(5)
    assert answer.code == 6
    assert f"what listens at 127.0.0.1:{meeting.port} is not rank 0" in answer.lines[0]


def test_rank_0_says_that_it_cannot_listen(port: int) -> None:
    place = Place(rank=0, nodes=2, master="192.0.2.1", port=port)
    answer = ranks.meet(place, Card(0, "a"), wait_s=1, say=print)
    assert answer.code == 6
    assert answer.lines[0].startswith(f"rank 0 cannot listen at 192.0.2.1:{port}: ")


SERVE = ("vllm", "serve", "model")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), None),
        (("--nnodes", "1"), None),
        (("--nnodes=2", "--node_rank=1", "--master-addr", "10.0.0.1"), Place(1, 2, "10.0.0.1", 29502)),
        (("-n", "2", "-r", "0", "--master-addr", "a", "--master-port", "30000"), Place(0, 2, "a", 30001)),
    ],
)
def test_the_place_is_what_vllm_is_told(words: Sequence[str], wanted: Place | None) -> None:
    assert ranks.place_of(rank_facts.arguments_of([*SERVE, *words])) == wanted


@pytest.mark.parametrize(
    "words",
    [
        ("--nnodes", "two"),
        ("--nnodes", "2"),
        ("--nnodes", "2", "--node-rank", "2", "--master-addr", "a"),
        ("--nnodes", "2", "--node-rank", "-1", "--master-addr", "a"),
        ("--nnodes", "2", "--master-addr", "a", "--master-port", "65535"),
    ],
)
def test_a_place_that_is_none_is_refused(words: Sequence[str]) -> None:
    with pytest.raises(ranks.Invalid):
        ranks.place_of(rank_facts.arguments_of([*SERVE, *words]))


def test_a_model_is_known_by_commit_or_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    refs = tmp_path / "hub/models--owner--name/refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("e" * 40 + "\n")
    (refs / "odd").write_text("not a commit")
    assert rank_facts.model_facts("owner/name", None) == "e" * 40
    assert rank_facts.model_facts("owner/name", "f" * 40) == "f" * 40
    assert [rank_facts.model_facts("owner/name", one) for one in ("odd", "absent")] == ["", ""]
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"12")
    before = rank_facts.model_facts(str(folder), None)
    (folder / "README.md").write_text("anything")
    assert rank_facts.model_facts(str(folder), None) == before
    (folder / "config.json").write_text("[]")
    assert rank_facts.model_facts(str(folder), None) != before


# The launcher


@pytest.fixture
def machines(tmp_path: Path) -> list[Environment]:
    return [make_place(tmp_path / name) for name in ("a", "b")]


Launched = tuple[int, str, dict[str, Any]]


def together(
    machines: Sequence[Environment], port: int, *, plans: Sequence[Any], more: Sequence[str] = ()
) -> list[Launched]:
    """Run the launcher as both ranks at once; return exit code, log and report of each."""
    running = []
    for rank, (one, plan) in enumerate(zip(machines, plans, strict=True)):
        one.write_plan(plan)
        words = ["--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1"]
        words += ["--master-port", str(port - 1), *(["--headless"] if rank else []), *more]
        argv = one.argv(*SERVE, *words, options=("--node", f"spark-{rank}", "--ranks-wait", "20"))
        running.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    found = []
    for one, process in zip(machines, running, strict=True):
        _, log = process.communicate(timeout=30)
        assert "Traceback" not in log, log
        file = one.run_dir / "report.json"
        found.append((process.returncode, log, json.loads(file.read_text()) if file.exists() else {}))
    return found


def test_two_launchers_that_are_the_same_become_the_server(machines: list[Environment], port: int) -> None:
    found = together(machines, port, plans=[plan_of()] * 2)
    assert [code for code, _, _ in found] == [0, 0], found
    for rank, (_, log, report) in enumerate(found):
        assert "2 ranks are the same: spark-0, spark-1" in log
        row = report["ranks"]
        assert (row["rank"], row["state"], row["nodes"]) == (rank, "same", {"0": "spark-0", "1": "spark-1"})
        assert row["facts"]["vllm"] == "0.32.0"
        assert row["facts"]["vllm/v1/core.py"] == report["patches"][0]["files"][0]["sha256_after"]
        assert row["facts"]["plan"] == report["plan_sha256"]


@pytest.mark.parametrize(("version", "words", "hangs"), [
    ("2.28.9", (), True),
    ("2.28.9", ("--enforce-eager",), False),
    ("2.30.4", (), False),
])  # fmt: skip
def test_an_nccl_that_hangs_in_replayed_graphs_is_said(
    machines: list[Environment], port: int, version: str, words: tuple[str, ...], hangs: bool
) -> None:
    for one in machines:
        info = one.package.parent / f"nvidia_nccl_cu13-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nvidia-nccl-cu13\nVersion: {version}\n\n")
    for code, log, report in together(machines, port, plans=[plan_of()] * 2, more=words):
        assert (code, report["ranks"]["facts"]["nccl"]) == (0, version)
        assert (f"warning: NCCL {version} between machines" in log) == hangs


def test_a_different_plan_stops_both_before_vllm_is_imported(machines: list[Environment], port: int) -> None:
    found = together(machines, port, plans=[plan_of(), plan_of(patch_of("two"))])
    assert [code for code, _, _ in found] == [5, 5], found
    for _, log, report in found:
        assert "rank 1 (spark-1) differs from rank 0 (spark-0) in plan: " in log
        assert "vllm was started on no machine" in log
        assert "starting vllm" not in log
        assert report["ranks"]["state"] == "different"


def test_another_vllm_under_the_same_plan_is_named_by_file(machines: list[Environment], port: int) -> None:
    core = machines[1].package / "v1/core.py"
    core.write_text(core.read_text() + "\nB = 2\n")
    found = together(machines, port, plans=[plan_of()] * 2)
    assert [code for code, _, _ in found] == [5, 5], found
    assert all("rank 1 (spark-1) differs from rank 0 (spark-0) in vllm/v1/core.py: " in log for _, log, _ in found)


def test_another_release_and_another_argument_are_named(machines: list[Environment], port: int) -> None:
    write_package(machines[1].package, version="0.33.0")
    found = together(machines, port, plans=[plan_of()] * 2)
    assert [code for code, _, _ in found] == [5, 5]
    assert all("in vllm: 0.33.0, not 0.32.0" in log for _, log, _ in found)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_patch_that_fits_one_rank_only_stops_both(machines: list[Environment], port: int, rank: int) -> None:
    core = machines[rank].package / "v1/core.py"
    core.write_text(core.read_text().replace('return "stock"', 'return "new"'))
    found = together(machines, port, plans=[plan_of()] * 2)
    assert [code for code, _, _ in found] == [5, 5], found
    assert f"rank {rank} (spark-{rank}) cannot start: one does not fit vllm 0.32.0" in found[1 - rank][1]


def test_a_file_is_compared_by_what_is_in_it_wherever_it_lies(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.jinja", "b.jinja")]
    for file in files:
        file.write_text("{{ messages }}")
    assert rank_facts.by_content(str(files[0])) == rank_facts.by_content(str(files[1])) != str(files[0])
    files[1].write_text("{{ other }}")
    assert rank_facts.by_content(str(files[0])) != rank_facts.by_content(str(files[1]))
    assert rank_facts.by_content(str(files[0].parent / "absent")) == str(files[0].parent / "absent")
    assert rank_facts.by_content("owner/name") == "owner/name"


def test_secrets_are_not_compared(machines: list[Environment], port: int) -> None:
    found = together(machines, port, plans=[plan_of()] * 2, more=("--api-key", "hush"))
    assert [code for code, _, _ in found] == [0, 0]
    assert all("hush" not in json.dumps(report) for _, _, report in found)


def test_an_unexpected_plan_is_refused_before_anything_else(machines: list[Environment]) -> None:
    one, plan = machines[0], plan_of()
    done = one.launch(plan, options=("--expect-plan", "0" * 64))
    assert (done.code, done.report, done.out) == (5, {}, "")
    assert f"is the plan {plan['sha256'][:12]}…, not 000000000000…" in done.err
    assert not one.run_dir.exists()
    assert one.launch(plan, options=("--expect-plan", str(plan["sha256"]))).code == 0
    assert one.launch(plan, options=("--expect-plan", "main")).code == 2


def test_a_launcher_without_its_comparison_starts_nothing(machines: list[Environment], tmp_path: Path) -> None:
    one = machines[0]
    one.write_plan(plan_of())
    alone = tmp_path / "launch.py"
    alone.write_bytes(data.LAUNCHER.read_bytes())
    argv = one.argv(*SERVE, "--nnodes", "2", "--master-addr", "127.0.0.1")
    argv[argv.index(str(data.LAUNCHER))] = str(alone)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 4
    assert "ranks.py is missing" in done.stderr


def test_an_address_of_version_6_is_shown_as_in_a_url() -> None:
    assert Place(rank=0, nodes=2, master="fd00::1", port=29502).meeting == "[fd00::1]:29502"
