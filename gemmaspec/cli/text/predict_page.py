"""`predict --html`: one self-contained page from a prediction, drawn by templates/predict.html."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from gemmaspec.cli.text import predict_brief
from gemmaspec.core import data

_PLACE: Final = '<script type="application/json" id="result">{}</script>'


def page(document: Mapping[str, Any]) -> str:
    """Return the page of what `predict --json` says: the template with it inside, as JSON that can hold no markup."""
    _, *lines = predict_brief.lines(document)
    shown = {name: document[name] for name in ("profile", "machine", "rows")} | {"lines": lines}
    inside = json.dumps(shown).replace("<", "\\u003c")
    template = (data.TEMPLATES / "predict.html").read_text(encoding="utf-8")
    return template.replace(_PLACE, _PLACE.replace("{}", inside))
