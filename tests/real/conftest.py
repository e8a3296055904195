"""What tests of real servers and of the real Docker daemon share, and what they leave behind for the next file."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import docker
import pytest

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.engine import compose, endpoint
from tests.support import real
from tests.support.docker_support import IMAGE, make_image


@pytest.fixture(scope="module", autouse=True)
def _own_profile() -> Iterator[None]:
    """Any file of a worker may run next: a profile that names one file's temporary files would fail in it."""
    yield
    real.write_profile()


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    """A client of this machine's daemon, which has the image of a shell while a file's tests run."""
    try:
        found = endpoint.connect(endpoint.find())
        compose.ensure_compose_v2()
    except EnvironmentMissing as missing:
        pytest.skip(f"real docker: {missing.message}")
    make_image(found)
    yield found
    found.images.remove(IMAGE, force=True)
    found.close()


@pytest.fixture
def collected() -> Iterator[None]:
    """What the docker SDK leaves to the garbage collector is collected before the next test."""
    yield
    gc.collect()
