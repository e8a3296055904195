"""Pages that hold all they show: a template of templates/ with its data and functions in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from gemmaspec.core import data

_PLACE: Final = '<script type="application/json" id="result">{}</script>'
_FILE: Final = re.compile(r"^// ([a-z]+\.js)$", re.MULTILINE)
"""The line of a template where another file of templates/ stands."""


def filled(template: str, shown: Mapping[str, Any]) -> str:
    """Return the page of a template and what it shows, as JSON that can hold no markup, in one file."""
    inside = json.dumps(shown).replace("<", "\\u003c")
    page = (data.TEMPLATES / template).read_text(encoding="utf-8")
    page = _FILE.sub(lambda line: (data.TEMPLATES / line[1]).read_text(encoding="utf-8").rstrip(), page)
    return page.replace(_PLACE, _PLACE.replace("{}", inside))
