"""What `docker pull` says, by the words of registries that cannot be asked here."""

from __future__ import annotations

import pytest

from gemmaspec.engine.image import why_not_pulled


@pytest.mark.parametrize(
    ("image", "said", "why", "hint"),
    [
        (
            "vllm/none:1",
            "Error response from daemon: pull access denied for vllm/none, repository does not exist or may "
            "require 'docker login': denied: requested access to the resource is denied",
            "refused access",
            "docker login",
        ),
        (
            "nvcr.io/nim/x:1",
            "Error response from daemon: unauthorized: authentication required",
            "refused access",
            "docker login nvcr.io",
        ),
        (
            "vllm/vllm-openai:v9",
            "Error response from daemon: manifest for vllm/vllm-openai:v9 not found: manifest unknown: "
            "manifest unknown",
            "was not found",
            "docker pull vllm/vllm-openai:v9",
        ),
        (
            "denied/unauthorized:1",
            'Error response from daemon: Get "https://registry.example/v2/": dial tcp: lookup '
            "registry.example: no such host",
            "cannot be reached",
            "docker pull denied/unauthorized:1",
        ),
        (
            "a:1",
            "net/http: request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)",
            "cannot be reached",
            "docker pull a:1",
        ),
        ("a:1", "no matching manifest for linux/arm64/v8 in the manifest list", "this machine", "uname -m"),
        ("a:1", "write /x: no space left on device", "no space left", "docker system df"),
        ("a:1", "something new", "cannot be pulled: something new", "docker pull a:1"),
    ],
)
def test_the_reason_is_told_apart(image: str, said: str, why: str, hint: str) -> None:
    error = why_not_pulled(image, said)
    assert why in error.message
    assert error.hint == hint
    assert error.exit_code == 4
