"""Quote text for a Compose file: for YAML, with Compose's own `$` escaped. The only way in."""

from __future__ import annotations

import json
import re
from typing import Final

from gemmaspec.core.profile.fields import LOCAL_PREFIXES

_YAML_BREAKS: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")
"""Characters that JSON allows but YAML reads as a line break or rejects."""
STATE: Final = "${GEMMASPEC_STATE:-${HOME}/.local/state/gemmaspec}"
"""gemmaspec's state folder, in a form that Compose resolves even without gemmaspec."""


def compose_string(value: object) -> str:
    """Return a YAML double-quoted scalar that Compose reads back as `value`; Compose interpolates `$`."""
    text = json.dumps(str(value), ensure_ascii=False).replace("$", "$$")
    return _YAML_BREAKS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def compose_folder(folder: str) -> str:
    """Return the source of a bind mount; Compose resolves `state:` and `~/` when it runs."""
    assert folder.startswith(LOCAL_PREFIXES), folder
    for prefix, start in (("state:", STATE + "/"), ("~/", "${HOME}/")):
        if folder.startswith(prefix):
            return f'"{start}{compose_string(folder.removeprefix(prefix))[1:]}'
    return compose_string(folder)


def compose_block(text: str, *, indent: int = 6) -> str:
    """Return a YAML literal block that Compose reads back as `text`, or a quoted scalar if a block is impossible."""
    plain = text.replace("\n", "").replace("\t", "").isprintable()
    if not plain or not text.strip() or text.startswith((" ", "\n")):
        return compose_string(text)
    body = text.replace("$", "$$")
    stripped = body.rstrip("\n")
    keep = {0: "-", 1: ""}.get(len(body) - len(stripped), "+")
    if keep == "+":
        lines = body.removesuffix("\n").split("\n")
    else:
        lines = stripped.split("\n")
    return f"|{keep}\n" + "\n".join(" " * indent + line if line else "" for line in lines)


def comment(text: str) -> str:
    """Return the text as one line for a `#` comment."""
    return " ".join(text.split())
