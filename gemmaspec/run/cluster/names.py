"""Names and labels that Kubernetes takes: of small letters, digits and hyphens, and at most 63 characters.

Objects as YAML that every reader reads alike: each text is quoted, and the result is read again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

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


_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Quoted(_DUMPER):  # type: ignore[misc]  # chosen when imported
    """Writes texts as double-quoted scalars, or as blocks where they have lines, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - as the class above has it
        """Return that nothing is written as an alias."""
        return True


def _text(dumper: Any, value: str) -> Any:
    """Write a text; a key or a word is never bare, since `no`, `1e3` and `2026-11-22` are not texts in YAML."""
    # A block keeps what it holds only if all of it can be shown; the emitter falls back to quotes by itself.
    style = "|" if "\n" in value and value.replace("\n", "").replace("\t", "").isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _mapping(dumper: Any, value: Mapping[str, Any]) -> Any:
    """Write a mapping in its own order, with plain keys where they are plain words."""
    node = dumper.represent_mapping("tag:yaml.org,2002:map", value.items())
    for key, _ in node.value:
        if key.value.replace("-", "a").isalpha() and key.value.isascii() and key.value.lower() not in _WORDS:
            key.style = None
    return node


_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_Quoted.add_representer(str, _text)
_Quoted.add_representer(dict, _mapping)


def yaml_text(documents: Sequence[Mapping[str, Any]], *, head: str = "") -> str:
    """Return objects as one YAML text, each comment line of `head` before them."""
    comment = "".join(f"# {' '.join(line.split())}\n" for line in head.splitlines())
    body = "---\n".join(
        yaml.dump(document, Dumper=_Quoted, allow_unicode=True, sort_keys=False, width=2**20) for document in documents
    )
    read = list(yaml.load_all(body, Loader=_LOADER))  # our own text
    assert read == list(documents), "a quoting error"
    return comment + body
