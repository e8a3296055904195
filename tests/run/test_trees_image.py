"""Images, read without running anything: real ones, imported on the spot."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import docker
import pytest

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.engine import endpoint
from gemmaspec.run.index.wheels import read_from_wheel
from gemmaspec.run.trees import image
from gemmaspec.run.trees.image import only_member, open_image
from gemmaspec.run.trees.versions import candidates, find_package
from tests.support import vllm_trees as fake
from tests.support.docker_support import wait_for
from tests.support.launching import CORE
from tests.support.real import RUN

LABEL = f"{image.LABEL}.{RUN}"
"""This run's own: others look into images on this machine too."""
SITE = "/usr/local/lib/python3.12/dist-packages"
VERSION = b"raise SystemExit('not to be run')\n__version__ = version = '0.33.1.dev45+gabc'\n"
PACKAGE = {"vllm/__init__.py": b"raise SystemExit", "vllm/_version.py": VERSION, "vllm/v1/core.py": CORE.encode()}
WANTED = ["vllm/v1/core.py", "vllm/v1/gone.py"]


def below(folder: str, files: Mapping[str, bytes | tarfile.TarInfo]) -> dict[str, bytes | tarfile.TarInfo]:
    return {f"{folder.lstrip('/')}/{path}": content for path, content in files.items()}


def special(kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    info.devmajor, info.devminor = 1, 3  # /dev/null; 0, 0 is how overlayfs says "deleted"
    return info


# Without docker


def test_the_named_interpreter_and_the_environment_come_before_the_usual_places() -> None:
    config = {"Env": ["PATH=/opt/own/bin:/usr/bin", "VIRTUAL_ENV=/srv/venv"], "WorkingDir": "/build"}
    found = list(candidates(config, "/opt/python/bin/python3"))
    order = ["/srv/venv", "/opt/python", "/opt/own", "/usr/local"]
    places = [found.index(f"{prefix}/lib/python3.12/site-packages/vllm") for prefix in order]
    assert places == sorted(places)
    assert "/build/vllm" in found
    assert len(found) == len(set(found))


def test_a_hostile_environment_gives_no_relative_place() -> None:
    config = {"Env": ["PATH=bin:../bin:", "VIRTUAL_ENV=..", "PYTHONPATH=a:", "NOTHING"], "WorkingDir": None}
    assert all(folder.startswith("/") for folder in candidates(config, "../python"))


def test_the_first_place_with_a_package_counts() -> None:
    there = {"/b/vllm/__init__.py": b"", "/c/vllm/__init__.py": b""}
    assert find_package(["/a/vllm", "/b/vllm", "/c/vllm"], there.get) == "/b/vllm"
    assert find_package(["/a/vllm"], there.get) is None


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE],
    ids=["link", "hard", "fifo", "device"],
)
def test_an_archive_of_anything_but_a_plain_file_is_refused(kind: bytes) -> None:
    with pytest.raises(EnvironmentMissing, match="not a regular file"):
        only_member([fake.tar_of({"core.py": special(kind, "/etc/passwd")})], "/x/core.py")


def test_an_archive_that_does_not_end_is_cut_off() -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"\0" * 1024 * 1024

    with pytest.raises(EnvironmentMissing, match="larger than"):
        only_member(endless(), "/x/core.py")


def test_a_folder_in_the_place_of_a_file_is_no_file() -> None:
    assert only_member([fake.tar_of({"core.py": special(tarfile.DIRTYPE)})], "/x/core.py") is None


def test_garbage_in_the_place_of_an_archive_is_a_sentence() -> None:
    with pytest.raises(EnvironmentMissing, match="an unreadable archive"):
        only_member([b"x" * 2000], "/x/core.py")


def test_without_a_daemon_the_reason_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(EnvironmentMissing, match="no socket"):
        open_image("some:1", lambda _: WANTED)


# With docker


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    try:
        client = endpoint.connect(endpoint.find())
    except EnvironmentMissing as missing:
        pytest.skip(f"real docker: {missing.message}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image, "LABEL", LABEL)
        yield client
    client.close()


Import = Callable[..., str]


@pytest.fixture
def imported(client: docker.DockerClient) -> Iterator[Import]:
    """Makes an image from files; all are removed at the end."""
    made = []

    def make(files: Mapping[str, bytes | tarfile.TarInfo], *changes: str) -> str:
        ref = f"gemmaspec-test-tree:{secrets.token_hex(4)}"
        repository, tag = ref.split(":")
        client.api.import_image_from_data(fake.tar_of(files), repository=repository, tag=tag, changes=list(changes))
        made.append(ref)
        return ref

    yield make
    for ref in made:
        client.images.remove(ref, force=True)


def looking(client: docker.DockerClient) -> list[str]:
    return [str(one.id) for one in client.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True)]


pytest_docker = pytest.mark.real_docker


@pytest_docker
@pytest.mark.parametrize(
    ("folder", "changes"),
    [
        (SITE, ()),
        ("/opt/venv/lib/python3.11/site-packages", ()),
        ("/srv/own/lib/python3.13/site-packages", ("ENV PATH=/srv/own/bin:/bin",)),
        ("/workspace/vllm", ()),
        ("/src", ("WORKDIR /src",)),
        ("/odd/place", ("ENV PYTHONPATH=/odd/place",)),
    ],
)
def test_vllm_is_found_and_read_where_images_have_it(
    folder: str, changes: tuple[str, ...], client: docker.DockerClient, imported: Import
) -> None:
    ref = imported(below(folder, PACKAGE), *changes)
    tree = open_image(ref, lambda version: WANTED if version == "0.33.1.dev45+gabc" else [])
    assert (tree.vllm, tree.files) == ("0.33.1.dev45+gabc", {"vllm/v1/core.py": CORE.encode(), "vllm/v1/gone.py": None})
    assert looking(client) == []


@pytest_docker
def test_the_interpreter_of_the_profile_leads_to_vllm(imported: Import) -> None:
    ref = imported(below("/hidden/py/lib/python3.12/site-packages", PACKAGE))
    with pytest.raises(EnvironmentMissing, match="cannot find a vllm package"):
        open_image(ref, lambda _: WANTED)
    assert open_image(ref, lambda _: WANTED, python="/hidden/py/bin/python3").vllm == "0.33.1.dev45+gabc"


@pytest_docker
@pytest.mark.parametrize("target", ["/etc/passwd", "../../../../../../etc/passwd", "/proc/self/environ", "plain.py"])
def test_a_link_in_the_place_of_a_file_is_refused(target: str, client: docker.DockerClient, imported: Import) -> None:
    link = {"vllm/v1/core.py": special(tarfile.SYMTYPE, target), "vllm/v1/plain.py": b"", "etc/passwd": b"root"}
    ref = imported(below(SITE, PACKAGE | link))
    with pytest.raises(EnvironmentMissing, match="is a link"):
        open_image(ref, lambda _: WANTED)
    assert looking(client) == []


@pytest_docker
def test_a_folder_that_links_out_is_resolved_inside_the_image(imported: Import) -> None:
    """Docker resolves links of folders against the image's own root, so nothing of this machine is read."""
    secret = Path("/etc/hostname").read_bytes() if Path("/etc/hostname").exists() else b""
    link = {"vllm/v1": special(tarfile.SYMTYPE, "/etc")}
    files = {path: content for path, content in PACKAGE.items() if not path.startswith("vllm/v1")}
    tree = open_image(imported(below(SITE, files | link)), lambda _: ["vllm/v1/hostname"])
    assert tree.files["vllm/v1/hostname"] is None or tree.files["vllm/v1/hostname"] != secret


@pytest_docker
@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE], ids=["fifo", "device"])
def test_a_device_in_the_place_of_a_file_is_refused(kind: bytes, imported: Import) -> None:
    ref = imported(below(SITE, PACKAGE | {"vllm/v1/core.py": special(kind)}))
    with pytest.raises(EnvironmentMissing, match="not a regular file"):
        open_image(ref, lambda _: WANTED)


@pytest_docker
def test_nothing_of_the_image_runs(client: docker.DockerClient, imported: Import) -> None:
    """An image whose entrypoint, command and health check do not exist would fail if docker started it."""
    ref = imported(below(SITE, PACKAGE), 'ENTRYPOINT ["/nothing"]', 'CMD ["--x"]', "VOLUME /data")
    volumes = len(client.volumes.list())
    assert open_image(ref, lambda _: WANTED).files["vllm/v1/core.py"] == CORE.encode()
    assert len(client.volumes.list()) <= volumes


@pytest_docker
@pytest.mark.parametrize("ref", ["gemmaspec-test-tree:none", "--privileged", "a b", "UPPER:1", ""])
def test_an_image_that_is_not_here_is_not_pulled(ref: str, client: docker.DockerClient) -> None:
    with pytest.raises(EnvironmentMissing):
        open_image(ref, lambda _: WANTED)
    assert looking(client) == []


@pytest_docker
def test_ctrl_c_leaves_no_container_behind(client: docker.DockerClient, imported: Import) -> None:
    ref = imported(below(SITE, PACKAGE))
    script = (
        "import sys, time\n"
        "from gemmaspec.run.trees import image\n"
        "def needed(_):\n    print('looking', flush=True); time.sleep(60)\n"
        "image.LABEL = sys.argv[2]\n"
        "image.open_image(sys.argv[1], needed)\n"
    )
    command = [sys.executable, "-c", script, ref, LABEL]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout
    assert process.stdout.readline() == b"looking\n"
    assert looking(client)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert wait_for(lambda: not looking(client))


@pytest_docker
def test_what_a_killed_command_left_is_removed_by_a_later_one(
    client: docker.DockerClient, imported: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = imported(below(SITE, PACKAGE))
    left = client.api.create_container(image=ref, command=["/x"], labels={LABEL: "1"})["Id"]
    open_image(ref, lambda _: WANTED)
    assert looking(client) == [left], "another command may be at work right now"
    monkeypatch.setattr(image, "_STALE_S", -5)
    open_image(ref, lambda _: WANTED)
    assert looking(client) == []


@pytest_docker
@pytest.mark.network
def test_files_of_a_real_wheel_are_read_from_an_image_byte_by_byte(imported: Import) -> None:
    paths = ["vllm/__init__.py", "vllm/_version.py", "vllm/v1/core/kv_cache_utils.py"]
    files = read_from_wheel("vllm", "0.32.0", paths)
    tree = open_image(imported(below(SITE, files)), lambda _: paths)
    assert tree.vllm == "0.32.0"
    assert tree.files == files


@pytest_docker
def test_of_several_images_those_that_are_here_are_named(imported: Import) -> None:
    ref = imported(below(SITE, PACKAGE))
    assert image.present(["gemmaspec-test-tree:none", ref]) == [ref]
