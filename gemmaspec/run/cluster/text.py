"""Objects as YAML that every reader reads alike: each text is quoted, and the result is read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

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
    if "\n" in value and value.replace("\n", "").replace("\t", "").isprintable():
        style = "|"
    else:
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _mapping(dumper: Any, value: Mapping[str, Any]) -> Any:
    """Write a mapping in its own order, with plain keys where they are plain words."""
    node = dumper.represent_mapping("tag:yaml.org,2002:map", value.items())
    for key, _ in node.value:
        if key.value.replace("-", "a").isalpha() and key.value.isascii() and key.value.lower() not in _WORDS:
            key.style = None
    return node


_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def yaml_text(documents: Sequence[Mapping[str, Any]], *, head: str = "") -> str:
    """Return objects as one YAML text, each comment line of `head` before them."""
    comment = "".join(f"# {' '.join(line.split())}\n" for line in head.splitlines())
    body = "---\n".join(
        yaml.dump(document, Dumper=_Quoted, allow_unicode=True, sort_keys=False, width=2**20) for document in documents
    )
    read = list(yaml.load_all(body, Loader=_LOADER))  # our own text
    assert read == list(documents), "a quoting error"
    return comment + body
