"""What `docker pull` says, by the words of registries that cannot be asked here."""

from __future__ import annotations

import pytest
from docker.errors import ImageNotFound

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.engine.image import ensure_image
from gemmaspec.run.engine.pulling import why_not_pulled


@pytest.mark.parametrize(
    ("image", "said", "why", "hint"),
    [
        (
            "vllm/none:1",
            "Error response from daemon: pull access denied for vllm/none, repository does not exist or may "
            "require 'docker login': denied: requested access to the resource is denied",
            "denied access",
            "docker login",
        ),
        (
            "nvcr.io/nim/x:1",
            "Error response from daemon: unauthorized: authentication required",
            "denied access",
            "docker login nvcr.io",
        ),
        (
            "vllm/vllm-openai:v9",
            "Error response from daemon: manifest for vllm/vllm-openai:v9 not found: manifest unknown: "
            "manifest unknown",
            "is not in its registry",
            "docker pull vllm/vllm-openai:v9",
        ),
        (
            "denied/unauthorized:1",
            'Error response from daemon: Get "https://registry.example/v2/": dial tcp: lookup '
            "registry.example: no such host",
            "cannot reach the registry",
            "docker pull denied/unauthorized:1",
        ),
        (
            "a:1",
            "net/http: request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)",
            "cannot reach the registry",
            "docker pull a:1",
        ),
        (
            "a:1",
            "no matching manifest for linux/arm64/v8 in the manifest list",
            "does not support this platform",
            "uname -m",
        ),
        ("a:1", "write /x: no space left on device", "no space left", "docker system df"),
        ("a:1", "something new", "cannot pull the image a:1: something new", "docker pull a:1"),
    ],
)
def test_the_reason_is_told_apart(image: str, said: str, why: str, hint: str) -> None:
    error = why_not_pulled(image, said)
    assert why in error.message
    assert error.hint == hint
    assert error.exit_code == 4


def test_an_image_that_is_built_here_is_not_looked_for_in_a_registry() -> None:
    class Empty:
        """A fake of the SDK's client of a daemon without images."""

        @property
        def images(self) -> Empty:
            return self

        def get(self, name: str) -> None:
            raise ImageNotFound(name)

    with pytest.raises(EnvironmentMissing, match="must be built on this machine") as caught:
        ensure_image(Empty(), "gemmaspec/vllm-cpu:0.1", {})  # type: ignore[arg-type]
    assert "make image" in (caught.value.hint or "")
