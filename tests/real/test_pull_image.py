"""Images by digest, with a real docker daemon and a fake registry: pulled, locked, and run with the registry gone."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemmaspec.core.errors import EnvironmentMissing, Interrupted
from gemmaspec.run.engine import image_size, pulling
from gemmaspec.run.engine.identity import image_identity
from tests.support import docker_support, real

pytestmark = [pytest.mark.real_docker, real.NO_DOCKER]

PROFILE = """\
schema: 1
name: registered
summary: a test
machine: cpu
image: %s
target: {model: %s}
serve: {port: %s}
caches: {huggingface: %s}
"""
SITE = "usr/local/lib/python3.12/dist-packages"


def layer(vllm: str) -> bytes:
    """Files that only look like vLLM, in the form of an image's layer."""
    files = {
        f"{SITE}/vllm/__init__.py": b"raise SystemExit('imported')",
        f"{SITE}/vllm/_version.py": f"__version__ = '{vllm}'".encode(),
        f"{SITE}/torch/version.py": b"__version__ = '2.13.0+cu130'",
        f"run-{real.RUN}": b"",  # another image in each run, removed by its id
        f"{SITE}/transformers/__init__.py": b'__version__ = "5.19.0"',
    }
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return tar.getvalue()


@pytest.fixture
def registry() -> Iterator[str]:
    """A registry with good/image:1; what was pulled from it is removed again."""
    with docker_support.fake_registry(layer("0.33.0")) as host:
        yield host
    found = subprocess.run(
        ["docker", "images", "-q", "--no-trunc", f"{host}/good/image"], capture_output=True, text=True, check=True
    )
    for id_ in set(found.stdout.split()):
        subprocess.run(["docker", "rmi", "-f", id_], capture_output=True, check=False)


def gemmaspec(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gemmaspec", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_image_is_pulled_locked_and_run_by_its_digest(registry: str, profiles: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    file = profiles / "registered.yaml"
    image = f"{registry}/good/image:1"
    file.write_text(PROFILE % (image, tmp_path / "model", real.PORT, tmp_path / "hf"))

    assert gemmaspec("doctor", str(file), "--engine", "docker").stdout.count(f"gemmaspec pull {file}") == 1

    pulled = gemmaspec("pull", str(file), "--engine", "docker", "--json")
    assert pulled.returncode == 0, pulled.stderr
    (part,) = json.loads(pulled.stdout)["parts"]
    assert part["role"] == "image"
    assert "image: the registry does not say how large" in pulled.stderr, "docker's client asks over https alone"
    assert "image: here" in pulled.stderr

    locked = gemmaspec("lock", str(file), "--engine", "docker", "--json")
    assert locked.returncode == 0, locked.stderr
    lock = json.loads(locked.stdout)["lock"]
    assert lock["versions"] == {"vllm": "0.33.0", "torch": "2.13.0+cu130", "transformers": "5.19.0"}
    reference = f"{image}@{lock['image']['digest']}"
    rendered = gemmaspec("render", str(file), "--locked", "--out", str(tmp_path / "out"))
    assert rendered.returncode == 0, rendered.stderr
    assert f'image: "{reference}"' in (tmp_path / "out" / "compose.yaml").read_text()
    doctor = json.loads(gemmaspec("doctor", str(file), "--engine", "docker", "--json").stdout)
    rows = {row["name"]: row for row in doctor["rows"]}
    assert rows["locked image"]["state"] == "ok"

    # The tag moves on; the locked image is still there by its digest, and nobody is asked for it.
    subprocess.run(["docker", "tag", real_image(), image], check=True)
    found = image_identity(reference)
    assert found
    assert found.id == lock["image"]["id"]
    made = subprocess.run(
        ["docker", "create", "--pull", "never", reference, "x"], capture_output=True, text=True, check=True
    )
    subprocess.run(["docker", "rm", made.stdout.strip()], capture_output=True, check=True)
    again = gemmaspec("doctor", str(file), "--engine", "docker", "--json")
    rows = {row["name"]: row for row in json.loads(again.stdout)["rows"]}
    assert rows["locked image"]["state"] == "warning"
    assert lock["image"]["digest"] in rows["locked image"]["message"]


def test_a_lock_asks_the_registry_and_pulls_nothing(registry: str, profiles: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    file = profiles / "registered.yaml"
    image = f"{registry}/good/image:1"
    file.write_text(PROFILE % (image, tmp_path / "model", real.PORT, tmp_path / "hf"))
    asked = gemmaspec("lock", str(file), "--engine", "docker", "--json")
    assert asked.returncode == 0, asked.stderr
    assert "its registry named the digest, nothing was pulled" in asked.stderr
    assert image_identity(image) is None, "30 GB for one digest"
    by_registry = json.loads(asked.stdout)["lock"]
    assert by_registry["versions"] is None
    pinned = gemmaspec("render", str(file), "--locked", "--out", str(tmp_path / "pinned"))
    assert pinned.returncode == 0, pinned.stderr
    by_digest = f'image: "{image}@{by_registry["image"]["digest"]}"'
    assert by_digest in (tmp_path / "pinned" / "compose.yaml").read_text()

    # What is pulled then is the locked digest, and its versions are known.
    assert gemmaspec("pull", str(file), "--engine", "docker").returncode == 0
    again = json.loads(gemmaspec("lock", str(file), "--engine", "docker", "--json").stdout)["lock"]
    assert again["image"]["digest"] == by_registry["image"]["digest"]
    assert again["versions"]["vllm"] == "0.33.0"


def real_image() -> str:
    """Any other image: a small one, made on the spot."""
    client = docker_support.docker.from_env()
    try:
        docker_support.make_image(client)
    finally:
        client.close()
    return docker_support.IMAGE


def test_what_cannot_be_pulled_says_why(registry: str) -> None:
    with pytest.raises(EnvironmentMissing, match="is not in its registry"):
        pulling.pull(f"{registry}/no/such:1", lambda _: None)
    with pytest.raises(EnvironmentMissing, match="denied access"):
        pulling.pull(f"{registry}/private/image:1", lambda _: None)
    with pytest.raises(EnvironmentMissing, match="is no longer on this machine"):
        pulling.pull(f"sha256:{'0' * 64}", lambda _: None)


def test_a_lock_of_an_image_that_no_registry_has_says_why(registry: str, profiles: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    file = profiles / "registered.yaml"
    for image, why in (
        (f"{registry}/no/such:1", "is not in its registry"),
        (f"{registry}/private/image:1", "the registry denied access"),
        ("gemmaspec/vllm-cpu:0.0.1", "must be built on this machine"),
    ):
        file.write_text(PROFILE % (image, tmp_path, real.PORT, tmp_path / "hf"))
        done = gemmaspec("lock", str(file), "--engine", "docker")
        assert done.returncode == 4, image
        assert why in done.stderr
    assert not file.with_suffix(".lock").exists()


def test_a_pull_ends_when_it_is_told_to(registry: str) -> None:
    def stop(_: int) -> None:
        raise Interrupted("enough")

    with pytest.raises(Interrupted):
        pulling.pull(f"{registry}/good/image:1", stop)


def test_a_registry_that_does_not_say_how_large_an_image_is() -> None:
    assert image_size.download_bytes("127.0.0.1:9/no/image:1") is None
