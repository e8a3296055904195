"""The docker engine against the real daemon, Compose and containers of a shell."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.models.containers import Container
from docker.utils.socket import demux_adaptor, frames_iter

from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError, StartFailed
from gemmaspec.core.state_id import state_id
from gemmaspec.run.engine import compose, endpoint, volumes
from gemmaspec.run.engine.container import has_nvidia
from gemmaspec.run.engine.docker import DockerEngine
from gemmaspec.run.engine.once import SharedFolder, run_once
from gemmaspec.run.engine.server import Server
from tests.support.docker_support import IMAGE, fake_registry, relay, shell_layer, stack, wait_for
from tests.support.real import free_port

pytestmark = [
    pytest.mark.real_docker,
    pytest.mark.usefixtures("collected"),
    # The docker SDK leaves sockets (and its ssh processes) of failed connections to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"),
]

SERVE = "echo up; trap 'exit 0' TERM; while :; do sleep 0.1; done"
REPORT = "/run/gemmaspec/report.json"


@pytest.fixture
def engine(client: docker.DockerClient) -> Iterator[DockerEngine]:
    engine = DockerEngine()
    yield engine
    engine.close()


@pytest.fixture
def make(engine: DockerEngine, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def _make(script: str = SERVE, **service: Any) -> Server:
        made.append(stack(tmp_path / "stacks" / f"test-{uuid.uuid4().hex[:8]}", script, **service))
        return made[-1]

    yield _make
    for server in made:
        compose.stop(server)


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., DockerEngine]]:
    """Engines whose environment differs; ask for it after `make`, which cleans up in the usual one."""
    made: list[DockerEngine] = []
    with pytest.MonkeyPatch.context() as patch:

        def _elsewhere(**environment: str) -> DockerEngine:
            for name, value in environment.items():
                patch.setenv(name, value)
            made.append(DockerEngine())
            return made[-1]

        yield _elsewhere
    for engine in made:
        engine.close()


def exited(engine: DockerEngine, server: Server) -> bool:
    return engine.state(server).status == "exited"


def first_line(engine: DockerEngine, server: Server) -> str:
    return next(iter(engine.logs(server, follow=True)))


# --- its life ---


def test_its_volumes_have_the_label_of_their_state_folder_and_compose_takes_them_as_its_own(
    engine: DockerEngine,
    make: Callable[..., Server],
    client: docker.DockerClient,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path))
    server = make(volumes=["cache:/cache"])
    file = compose.file_of(server)
    document = json.loads(file.read_text())
    options = {"type": "tmpfs", "device": "tmpfs"}
    document["volumes"] = {"cache": {}, "watch": {"driver_opts": options}}
    document["services"]["vllm"]["volumes"].append("watch:/watch")
    file.write_text(json.dumps(document))
    engine.start(server)
    first_line(engine, server)
    volume, watch = (client.volumes.get(f"{server.project}_{key}") for key in ("cache", "watch"))
    try:
        assert volume.attrs["Labels"][volumes.STATE] == watch.attrs["Labels"][volumes.STATE] == state_id()
        assert watch.attrs["Options"] == options
        (mount,) = client.containers.list(filters={"volume": volume.name})
        assert mount.labels["com.docker.compose.project"] == server.project
        engine.stop(server)
        engine.start(server)  # the volume that is there stays
        assert client.volumes.get(volume.name).attrs["CreatedAt"] == volume.attrs["CreatedAt"]
    finally:
        engine.stop(server)
        for made in (volume, watch):
            made.remove(force=True)


def test_a_server_starts_runs_and_is_stopped(engine: DockerEngine, make: Callable[..., Server]) -> None:
    server = make()
    assert engine.state(server).status == "absent"
    engine.preflight(server)
    engine.start(server)
    running = engine.state(server)
    assert (running.status, running.exit_code, running.restarts) == ("running", None, 0)
    assert running.detail.startswith("container ")
    assert engine.stop(server) is True
    assert engine.state(server).status == "absent"
    assert engine.stop(server) is False


def test_a_watch_that_outlives_its_server_is_stopped_as_something_that_ran(
    engine: DockerEngine, make: Callable[..., Server]
) -> None:
    server = make("exit 3")
    file = server.folder / "compose.yaml"
    stacked = json.loads(file.read_text())
    stacked["services"]["watch"] = {"image": IMAGE, "command": ["sh", "-c", SERVE.replace("$", "$$")], "init": True}
    file.write_text(json.dumps(stacked))
    engine.start(server)
    wait_for(lambda: exited(engine, server))
    assert engine.stop(server) is True
    assert engine.stop(server) is False


def test_a_watch_that_was_killed_is_started_again_and_its_server_is_left_alone(
    engine: DockerEngine, make: Callable[..., Server], client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_THE_SHELL", "first")
    server = dataclasses.replace(make(environment=["FROM_THE_SHELL"]), watched=True)
    file = server.folder / "compose.yaml"
    stacked = json.loads(file.read_text())
    stacked["services"]["watch"] = {
        "image": IMAGE, "command": ["sh", "-c", SERVE.replace("$", "$$")], "init": True, "restart": "on-failure"
    }  # fmt: skip
    file.write_text(json.dumps(stacked))
    engine.start(server)
    before = engine.state(server)
    assert engine.start_watch(server) is False

    def watch() -> Container:
        found = engine._container(server, "watch")
        assert found
        return found

    os.kill(watch().attrs["State"]["Pid"], signal.SIGKILL)
    wait_for(lambda: watch().attrs["RestartCount"] == 1 and watch().status == "running")  # by Docker
    monkeypatch.setenv("FROM_THE_SHELL", "another, as a key of another day")
    for end in (lambda: watch().kill(), lambda: watch().stop(timeout=1), lambda: watch().remove(force=True)):
        end()
        wait_for(lambda: (found := engine._container(server, "watch")) is None or found.status == "exited")
        assert engine.start_watch(server) is True
        assert watch().status == "running"
        assert engine.state(server) == before
    assert engine.start_watch(dataclasses.replace(server, watched=False)) is False


def test_a_second_start_of_the_same_stack_leaves_its_container_alone(
    engine: DockerEngine, make: Callable[..., Server]
) -> None:
    server = make()
    engine.start(server)
    before = engine.state(server)
    engine.preflight(server)
    engine.start(server)
    assert engine.state(server) == before


def test_a_changed_stack_replaces_its_container(engine: DockerEngine, make: Callable[..., Server]) -> None:
    server = make()
    engine.start(server)
    before = engine.state(server).detail
    stack(server.folder, "echo other; sleep 100", port=server.port)
    engine.start(server)
    assert first_line(engine, server) == "other"
    assert engine.state(server).detail != before


def test_the_exit_code_of_a_server_that_ended_is_told(engine: DockerEngine, make: Callable[..., Server]) -> None:
    server = make("exit 5")
    engine.start(server)
    wait_for(lambda: exited(engine, server))
    assert engine.state(server).exit_code == 5
    assert engine.stop(server) is False


def test_restarts_are_bounded_counted_and_their_logs_kept_apart(
    engine: DockerEngine, make: Callable[..., Server]
) -> None:
    server = make("echo begin $$; echo crash; exit 3", restart="on-failure:3", init=False)
    engine.start(server)
    wait_for(lambda: exited(engine, server) and engine.state(server).restarts == 3)
    assert engine.state(server).exit_code == 3
    assert list(engine.logs(server)) == ["begin 1", "crash"]


def test_a_container_between_two_starts_is_restarting(engine: DockerEngine, make: Callable[..., Server]) -> None:
    server = make("exit 3", restart="always")  # each pause is twice as long as the one before: one is long enough
    engine.start(server)
    wait_for(lambda: engine.state(server).status == "restarting")


def test_a_process_killed_for_lack_of_memory_is_told(engine: DockerEngine, make: Callable[..., Server]) -> None:
    server = make("a=xxxxxxxxxxxxxxxx; while :; do a=$a$a; done", mem_limit="16m", init=False)
    engine.start(server)
    wait_for(lambda: exited(engine, server))
    state = engine.state(server)
    assert state.exit_code == 137
    assert state.starved == "memory ran out: the kernel has killed a process of its container"


def test_a_server_can_be_stopped_when_its_compose_file_is_broken_or_gone(
    engine: DockerEngine, make: Callable[..., Server]
) -> None:
    server = make()
    file = server.folder / "compose.yaml"
    whole = file.read_text()
    for spoil in (lambda: file.write_text("services: [broken"), file.unlink):
        file.write_text(whole)
        engine.start(server)
        spoil()
        assert engine.stop(server) is True
        assert engine.state(server).status == "absent"


def test_stopping_leaves_volumes_alone(
    engine: DockerEngine, make: Callable[..., Server], client: docker.DockerClient
) -> None:
    server = make(volumes=["cache:/cache"])
    described = json.loads((server.folder / "compose.yaml").read_text())
    (server.folder / "compose.yaml").write_text(json.dumps(described | {"volumes": {"cache": {}}}))
    engine.start(server)
    engine.stop(server)
    volume = client.volumes.get(f"{server.project}_cache")
    volume.remove()


def test_the_environment_is_passed_through_by_name_only(
    engine: DockerEngine, make: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GEMMASPEC_STATE", str(tmp_path))
    monkeypatch.setenv("VLLM_API_KEY", "s3cret-value")
    monkeypatch.setenv("COMPOSE_PROJECT_NAME", "somebody-else")
    monkeypatch.setenv("COMPOSE_FILE", "/nonexistent.yaml")
    server = make(
        'echo "$VLLM_API_KEY at $WHERE"',
        environment={"VLLM_API_KEY": None, "WHERE": "${GEMMASPEC_STATE}"},
    )
    engine.start(server)
    assert first_line(engine, server) == f"s3cret-value at {tmp_path}"
    files = [file.read_text() for file in server.folder.iterdir()]
    assert not any("s3cret" in text for text in files)


# --- what it says ---


def test_logs_follow_until_the_server_stops(engine: DockerEngine, make: Callable[..., Server]) -> None:
    server = make()
    engine.start(server)
    seen: list[str] = []
    follower = threading.Thread(target=lambda: seen.extend(engine.logs(server, follow=True)))
    follower.start()
    wait_for(lambda: list(engine.logs(server)) == ["up"])
    assert follower.is_alive()
    engine.stop(server)
    follower.join(timeout=60)
    assert not follower.is_alive()
    assert seen == ["up"]


def test_hostile_output_reaches_nobody_raw(engine: DockerEngine, make: Callable[..., Server]) -> None:
    server = make(
        r"printf 'a\033[31mred\033[0m\033]0;title\007\tb\n\377\376\200 broken\n10%%\r20%%\r\n'; "
        r"printf '%040000d é\n' 0; printf 'no end'"
    )
    engine.start(server)
    wait_for(lambda: exited(engine, server))
    first, second, *rest = engine.logs(server)
    assert first == "ared\tb"
    assert second == "\ufffd\ufffd\ufffd broken"
    assert rest == ["10%", "20%", "0" * 40000 + " é", "no end"]


def test_a_second_start_does_not_show_the_output_of_the_first(
    engine: DockerEngine, make: Callable[..., Server], client: docker.DockerClient
) -> None:
    script = "echo first line; echo second line; trap 'echo ended; exit 0' TERM; while :; do sleep 0.1; done"
    server = make(script, init=False)
    engine.start(server)
    wait_for(lambda: len(list(engine.logs(server))) == 2)
    container = client.containers.list(filters={"label": f"com.docker.compose.project={server.project}"})[0]
    for _ in range(3):
        container.stop(timeout=60)
        assert list(engine.logs(server)) == ["first line", "second line", "ended"]
        engine.start(server)
        wait_for(lambda: len(list(engine.logs(server))) >= 2)
        assert list(engine.logs(server)) == ["first line", "second line"]


def test_only_the_last_lines_can_be_asked_for(engine: DockerEngine, make: Callable[..., Server]) -> None:
    server = make("echo one; echo two; printf '1%%\\r2%%\\r3%%\\n'")
    engine.start(server)
    wait_for(lambda: exited(engine, server))
    assert list(engine.logs(server, tail=2)) == ["2%", "3%"]
    assert list(engine.logs(server, tail=4)) == ["two", "1%", "2%", "3%"]


def test_a_stack_that_was_never_started_says_nothing(engine: DockerEngine, make: Callable[..., Server]) -> None:
    server = make()
    assert list(engine.logs(server, follow=True)) == []
    assert engine.report(server) is None


def test_the_report_is_read_from_the_running_container(
    engine: DockerEngine, make: Callable[..., Server], tmp_path: Path
) -> None:
    written = json.dumps({"schema": 1, "profile": "é"}, ensure_ascii=False)
    script = f"until cat /told/go; do sleep 0.1; done; echo '{written}' > {REPORT}; echo written; sleep 100"
    server = make(script, volumes=[f"{tmp_path}:/told:ro"])
    engine.start(server)
    assert engine.report(server) is None
    (tmp_path / "go").touch()
    wait_for(lambda: "written" in engine.logs(server))
    assert engine.report(server) == {"schema": 1, "profile": "é"}
    engine.stop(server)
    assert engine.report(server) is None


@pytest.mark.parametrize(
    ("produce", "why"),
    [
        ("echo '[1]'", "not a JSON object"),
        ("echo '{'", "not a JSON object"),
        ("printf '\\377\\376'", "not a JSON object"),
        ("cat /dev/zero | head -c 2000000", "longer than"),
    ],
)
def test_a_report_that_is_none_is_refused(
    engine: DockerEngine, make: Callable[..., Server], produce: str, why: str
) -> None:
    server = make(f"{produce} > {REPORT}; echo written; sleep 100")
    engine.start(server)
    assert first_line(engine, server) == "written"
    with pytest.raises(GemmaspecError, match=why):
        engine.report(server)


_HEAD = -1


def _stream_without(lost: int) -> socket.socket:
    """The stream of an exec as the daemon sends it, without its first bytes."""
    ours, theirs = socket.socketpair()
    theirs.sendall((struct.pack(">BxxxL", 1, 40) + b"=" * 40)[lost:])
    theirs.close()
    return ours


def test_what_the_daemon_lost_is_read_again(
    engine: DockerEngine, make: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it loses output on a busy machine: all of it, its beginning, its end, or a part of the head of its own frame."""
    server = make(f"echo '{{}}' > {REPORT}; echo written; sleep 100")
    engine.start(server)
    assert first_line(engine, server) == "written"
    run, lost = docker.APIClient.exec_start, [slice(None), slice(1, None), slice(-5), slice(0), _HEAD]

    def losing(own: docker.APIClient, *args: Any, **more: Any) -> Any:
        out, err = run(own, *args, **more)
        kept = lost.pop() if lost else slice(None)
        if kept == _HEAD:
            [demux_adaptor(*frame) for frame in frames_iter(_stream_without(3), tty=False)]
        return out[kept] or None, err

    monkeypatch.setattr(docker.APIClient, "exec_start", losing)
    assert engine.report(server) == {}
    assert not lost
    lost[:] = [slice(0)] * 99
    with pytest.raises(GemmaspecError, match="does not pass on what was read"):
        engine.report(server)


# --- what is missing ---


def test_a_port_held_by_another_container_names_it(engine: DockerEngine, make: Callable[..., Server]) -> None:
    holder = make()
    engine.start(holder)
    with pytest.raises(EnvironmentMissing, match=f"in use by the container {holder.project}"):
        engine.preflight(make(port=holder.port))


def test_a_port_held_by_a_process_names_it(engine: DockerEngine, make: Callable[..., Server]) -> None:
    port = free_port()
    listen = (
        "import socket, time\n"
        f"listener = socket.create_server(('127.0.0.1', {port}))\n"
        "print('listening', flush=True)\ntime.sleep(99)"
    )
    holder = subprocess.Popen([sys.executable, "-c", listen], stdout=subprocess.PIPE)
    try:
        assert holder.stdout
        holder.stdout.readline()
        with pytest.raises(EnvironmentMissing, match=rf"port {port} on 127.0.0.1 .*\(pid {holder.pid}\)"):
            engine.preflight(make(port=port))
    finally:
        holder.kill()
        holder.communicate()


def test_a_port_taken_between_the_check_and_the_start_is_the_machines_fault(
    engine: DockerEngine, make: Callable[..., Server]
) -> None:
    server = make()
    with (
        socket.create_server(("127.0.0.1", server.port)),
        pytest.raises(EnvironmentMissing, match="the port is in use"),
    ):
        engine.start(server)
    assert engine.state(server).status == "absent", "the container that Compose had created is removed"
    engine.start(server)
    assert engine.state(server).status == "running"


def test_an_address_of_another_machine_is_told_apart_from_a_taken_port(
    engine: DockerEngine, make: Callable[..., Server]
) -> None:
    server = make()
    foreign = Server(**{**vars(server), "bind": "192.0.2.1"})
    with pytest.raises(EnvironmentMissing, match=r"cannot listen on the address 192\.0\.2\.1"):
        engine.preflight(foreign)


def test_a_docker_without_the_nvidia_runtime_is_told(
    engine: DockerEngine, make: Callable[..., Server], client: docker.DockerClient
) -> None:
    if has_nvidia(client.info()):
        pytest.skip("this docker has an NVIDIA runtime")
    server = make()
    with pytest.raises(EnvironmentMissing, match="no NVIDIA runtime") as caught:
        engine.preflight(Server(**{**vars(server), "gpus": True}))
    assert "nvidia-ctk" in (caught.value.hint or "")


def test_a_start_that_finds_no_gpu_driver_is_the_machines_fault(
    engine: DockerEngine, make: Callable[..., Server], client: docker.DockerClient
) -> None:
    if has_nvidia(client.info()):
        pytest.skip("this docker has an NVIDIA runtime")
    device = {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    server = make(deploy={"resources": {"reservations": {"devices": [device]}}})
    with pytest.raises(EnvironmentMissing, match="no NVIDIA runtime"):
        engine.start(server)


def test_a_compose_file_that_asks_for_an_unset_variable_fails_with_its_name(
    engine: DockerEngine, make: Callable[..., Server]
) -> None:
    server = make(environment={"KEY": "${GEMMASPEC_TEST_UNSET:?set it first}"})
    with pytest.raises(StartFailed, match="set it first"):
        engine.start(server)


def with_image(server: Server, image: str) -> Server:
    return Server(**{**vars(server), "image": image})


def test_a_missing_image_is_pulled_with_its_progress_on_stderr(
    engine: DockerEngine,
    make: Callable[..., Server],
    client: docker.DockerClient,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with fake_registry(shell_layer()) as registry:
        image = f"{registry}/good/image:1"
        engine.preflight(with_image(make(), image))
        assert client.images.get(image)
        client.images.remove(image)
    shown = capfd.readouterr()
    assert "Status: Downloaded newer image" in shown.err
    assert shown.out == ""


def test_an_image_that_no_registry_has_is_told(engine: DockerEngine, make: Callable[..., Server]) -> None:
    with (
        fake_registry(b"") as registry,
        pytest.raises(EnvironmentMissing, match="is not in its registry") as caught,
    ):
        engine.preflight(with_image(make(), f"{registry}/good/image:2"))
    assert (caught.value.hint or "").startswith("docker pull 127.0.0.1:")


def test_an_image_one_may_not_have_is_told(engine: DockerEngine, make: Callable[..., Server]) -> None:
    with (
        fake_registry(b"") as registry,
        pytest.raises(EnvironmentMissing, match="denied access") as caught,
    ):
        engine.preflight(with_image(make(), f"{registry}/private/image:1"))
    assert caught.value.hint == f"docker login {registry}"


@pytest.mark.parametrize("registry", ["127.0.0.1:1", "registry.invalid"])
def test_a_registry_that_cannot_be_reached_is_told(
    engine: DockerEngine, make: Callable[..., Server], registry: str
) -> None:
    with pytest.raises(EnvironmentMissing, match="cannot reach the registry"):
        engine.preflight(with_image(make(), f"{registry}/not/found:denied"))


def test_an_impossible_image_name_is_told(engine: DockerEngine, make: Callable[..., Server]) -> None:
    with pytest.raises(EnvironmentMissing, match="docker rejects the image name"):
        engine.preflight(with_image(make(), "--Not An Image"))


# --- a daemon that does not answer ---


def test_a_daemon_without_a_socket_is_down(elsewhere: Callable[..., DockerEngine]) -> None:
    with pytest.raises(EnvironmentMissing, match="no socket at unix:///nonexistent") as caught:
        elsewhere(DOCKER_HOST="unix:///nonexistent").ping()
    assert caught.value.exit_code == 4


def test_a_daemon_that_left_its_socket_behind_is_down(elsewhere: Callable[..., DockerEngine], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "s"))
    with pytest.raises(EnvironmentMissing, match="nothing listens"):
        elsewhere(DOCKER_HOST=f"unix://{tmp_path}/s").ping()


def test_a_daemon_that_hangs_is_told(
    elsewhere: Callable[..., DockerEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "TIMEOUT_S", 1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        with pytest.raises(EnvironmentMissing, match="within 1 s"):
            elsewhere(DOCKER_HOST=f"unix://{tmp_path}/s").ping()


def test_a_socket_this_user_may_not_use_is_told(
    client: docker.DockerClient, elsewhere: Callable[..., DockerEngine]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become a user who may not use docker")
    engine = elsewhere()
    os.seteuid(65534)
    try:
        with pytest.raises(EnvironmentMissing, match="permission denied"):
            engine.ping()
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("tcp://127.0.0.1:1", "nothing listens"),
        ("tcp://docker.invalid:2375", "not answering at tcp://docker.invalid"),
        ("nonsense", "not answering at nonsense"),
    ],
)
def test_a_remote_daemon_that_is_not_there_is_told(elsewhere: Callable[..., DockerEngine], host: str, why: str) -> None:
    with pytest.raises(EnvironmentMissing, match=why):
        elsewhere(DOCKER_HOST=host).ping()


def test_a_docker_context_that_does_not_exist_is_told(
    elsewhere: Callable[..., DockerEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    with pytest.raises(EnvironmentMissing, match="context 'nowhere' does not exist"):
        elsewhere(DOCKER_CONTEXT="nowhere").ping()


def test_a_daemon_that_goes_away_while_its_logs_are_followed_is_told(
    client: docker.DockerClient, make: Callable[..., Server], elsewhere: Callable[..., DockerEngine]
) -> None:
    server = make()
    with relay("/var/run/docker.sock") as (url, cut):
        engine = elsewhere(DOCKER_HOST=url)
        engine.start(server)
        followed = engine.logs(server, follow=True)
        assert next(followed) == "up"
        cut()
        with pytest.raises(EnvironmentMissing, match="stopped answering"):
            list(followed)
        with pytest.raises(EnvironmentMissing, match="stopped answering"):
            engine.state(server)


# --- daemons elsewhere ---


def whole_life(engine: DockerEngine, server: Server) -> None:
    engine.preflight(server)
    engine.start(server)
    assert first_line(engine, server) == "up"
    assert engine.state(server).status == "running"
    assert engine.stop(server) is True


def test_a_daemon_on_tcp_is_remote_and_its_ports_are_not_tried_here(
    client: docker.DockerClient, make: Callable[..., Server], elsewhere: Callable[..., DockerEngine]
) -> None:
    server = make()
    with relay("/var/run/docker.sock") as (url, _):
        engine = elsewhere(DOCKER_HOST=url)
        assert engine.remote
        with socket.create_server(("127.0.0.1", server.port)):
            engine.preflight(server)
        whole_life(engine, server)


def test_a_remote_server_reads_the_stack_from_a_volume_and_its_root_is_read_only(
    client: docker.DockerClient, make: Callable[..., Server], elsewhere: Callable[..., DockerEngine]
) -> None:
    """The plan is there when the server starts, and again after a change."""
    script = f"cat /gemmaspec/plan.json; echo x > /file; {SERVE}"
    volume = {"type": "volume", "source": "stack", "target": "/gemmaspec"}
    server = dataclasses.replace(make(script, read_only=True, volumes=[volume]), copied=True)
    file = server.folder / "compose.yaml"
    file.write_text(json.dumps({**json.loads(file.read_text()), "volumes": {"stack": {}}}))
    with relay("/var/run/docker.sock") as (url, _):
        engine = elsewhere(DOCKER_HOST=url)
        for plan in ("first", "second"):
            (server.folder / "plan.json").write_text(f"{plan}\n")
            engine.start(server)
            wait_for(lambda: "up" in list(engine.logs(server)))
            said = list(engine.logs(server))
            assert [line for line in said if line in ("first", "second")] == [plan]
            assert any("Read-only file system" in line for line in said)
            assert engine.stop(server) is True
    client.volumes.get(f"{server.project}_stack").remove()


def test_the_current_docker_context_chooses_the_daemon(
    client: docker.DockerClient,
    make: Callable[..., Server],
    elsewhere: Callable[..., DockerEngine],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    server = make()
    plugins = Path("/usr/local/lib/docker/cli-plugins")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    with relay("/var/run/docker.sock") as (url, _):
        engine = elsewhere(DOCKER_CONFIG=str(tmp_path / "docker"))
        home_plugins = Path.home() / ".docker" / "cli-plugins"
        (tmp_path / "docker").mkdir()
        if not plugins.exists() and home_plugins.exists():
            (tmp_path / "docker" / "cli-plugins").symlink_to(home_plugins)
        for command in (["create", "far", "--docker", f"host={url}"], ["use", "far"]):
            subprocess.run(["docker", "context", *command], check=True, capture_output=True)
        assert engine.remote
        assert engine.endpoint.chosen_by == "context far"
        whole_life(engine, server)


def test_a_daemon_behind_ssh_is_remote(
    client: docker.DockerClient,
    make: Callable[..., Server],
    elsewhere: Callable[..., DockerEngine],
    tmp_path: Path,
) -> None:
    """The fake ssh runs the remote command here; docker's CLI and SDK both call ssh by its name."""
    pytest.importorskip("paramiko", reason="the docker SDK asks for paramiko even when it runs ssh itself")
    fake_commands(tmp_path, ssh='while [ "$1" != -- ]; do shift; done; shift 2; unset DOCKER_HOST; exec sh -c "$*"')
    server = make()
    engine = elsewhere(DOCKER_HOST="ssh://me@far", PATH=f"{tmp_path}/fake:{os.environ['PATH']}")
    assert engine.remote
    whole_life(engine, server)


# --- the command line (fake commands: this machine has a real docker and no Compose v1) ---


def fake_commands(folder: Path, **scripts: str) -> str:
    (folder / "fake").mkdir()
    for name, script in scripts.items():
        file = folder / "fake" / name.replace("_", "-")
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
    return f"{folder}/fake"


def test_a_machine_without_the_docker_command_is_told(elsewhere: Callable[..., DockerEngine], tmp_path: Path) -> None:
    server = stack(tmp_path / "stack", SERVE)
    engine = elsewhere(PATH=fake_commands(tmp_path))
    for act in (engine.preflight, engine.start):
        with pytest.raises(EnvironmentMissing, match="docker command is not installed"):
            act(server)


@pytest.mark.parametrize(
    ("plugin", "standalone", "why"),
    [
        ("exit 1", "echo 1.29.2", r"only Compose v1 is installed \(docker-compose 1\.29\.2\)"),
        ("exit 1", "echo 2.26.1", "2.26.1 is installed as docker-compose, but not as docker's plugin"),
        ("exit 1", None, "its plugin is missing"),
        ("echo 1.28.0-tech-preview", None, r"is version 1\.28\.0-tech-preview"),
        ("echo rubbish", "echo rubbish", "its plugin is missing"),
    ],
)
def test_a_compose_that_is_too_old_or_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugin: str, standalone: str | None, why: str
) -> None:
    others = {"docker_compose": standalone} if standalone else {}
    monkeypatch.setenv("PATH", f"{fake_commands(tmp_path, docker=plugin, **others)}:/usr/bin:/bin")
    with pytest.raises(EnvironmentMissing, match=why):
        compose.ensure_compose_v2()


def test_a_command_runs_once_as_this_user_and_is_gone(client: docker.DockerClient, tmp_path: Path) -> None:
    own, out = tmp_path / "own", tmp_path / "out"
    for folder in (own, out):
        folder.mkdir()
    (own / "script").write_text("echo made > /out/file; echo said >&2; echo more > /own/file; exit 7\n")
    mounts = (SharedFolder(folder=own, at="/own", read_only=True), SharedFolder(folder=out, at="/out"))
    code, said = run_once(IMAGE, "sh", ("/own/script",), mounts)
    assert (code, said[0], "Read-only" in said[-1]) == (7, "said", True)
    assert (out / "file").read_text() == "made\n"
    assert (out / "file").stat().st_uid == os.getuid()
    assert not client.containers.list(all=True, filters={"name": "gemmaspec-once-", "ancestor": IMAGE})
    with pytest.raises(EnvironmentMissing, match="docker cannot run gemmaspec/none:1"):
        run_once("gemmaspec/none:1", "sh", (), ())
