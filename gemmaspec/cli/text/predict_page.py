"""`predict --html`: one self-contained page from a prediction, drawn by templates/predict.html."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmaspec.cli.text import predict_brief
from gemmaspec.core.pages import filled


def page(document: Mapping[str, Any]) -> str:
    """Return the page of what `predict --json` says: the template with it inside, as JSON that can hold no markup."""
    _, *lines = predict_brief.lines(document)
    shown = {name: document[name] for name in ("profile", "machine", "rows")} | {"lines": lines}
    return filled("predict.html", shown)
