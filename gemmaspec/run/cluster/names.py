"""Names and labels that Kubernetes takes: of small letters, digits and hyphens, and at most 63 characters."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from gemmaspec.run.cluster.text import _mapping, _Quoted, _text

LIMIT: Final = 63
"""Characters of a DNS label (RFC 1123), of a Service's name and of a label's value."""
HASH: Final = 10
"""Hex digits of the hash in a ConfigMap's name, and of that in a name that had to be cut."""

DOMAIN: Final = "gemmaspec.dev"
PROFILE_LABEL: Final = f"{DOMAIN}/profile"
PLAN_ANNOTATION: Final = f"{DOMAIN}/plan-sha256"
"""An annotation, not a label: a sha256 has 64 characters, one more than a label's value may have."""

_UNSAFE: Final = re.compile("[^a-z0-9-]+")


def object_name(profile: str) -> str:
    """Return the name of a profile's objects; it leaves room for a hash after it.

    It begins with a letter, as a Service's must, and is never `vllm`: Kubernetes gives the pods of a namespace a
    variable VLLM_PORT for a Service of that name, which vLLM reads as its own.
    """
    return bounded(f"gemmaspec-{profile}", LIMIT - HASH - 1)


def bounded(text: str, limit: int = LIMIT) -> str:
    """Return `text` as a DNS label of at most `limit` characters; what was changed ends in a hash of all of it."""
    safe = _UNSAFE.sub("-", text.lower()).strip("-")
    if safe == text and len(safe) <= limit:
        return safe
    return f"{safe[: limit - HASH - 1].rstrip('-')}-{digest(text)}".lstrip("-")


def hashed_name(name: str, data: Mapping[str, str]) -> str:
    """Return the name of an immutable object: other data is another name."""
    return f"{name}-{digest(repr(sorted(data.items())))}"


def digest(text: str) -> str:
    """Return the first digits of the sha256 of `text`."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:HASH]


def selector(profile: str) -> Mapping[str, str]:
    """Return the labels that select a profile's pods; a Deployment can never change them."""
    return {"app.kubernetes.io/name": "gemmaspec", PROFILE_LABEL: bounded(profile)}


def labels(profile: str) -> Mapping[str, str]:
    """Return the labels of a profile's objects."""
    return {**selector(profile), "app.kubernetes.io/managed-by": "gemmaspec"}


_Quoted.add_representer(str, _text)
_Quoted.add_representer(dict, _mapping)
