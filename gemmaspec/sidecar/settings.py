"""What the watch in a container is told: settings.json, as gemmaspec/stack/serve.py writes it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from gemmaspec.live.faults import Limits, Policy, limits_of


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """One server to watch. Nothing here is a secret."""

    stack: str
    address: str
    """The server on the stack's own network, such as http://vllm:8000."""
    model: str
    """The name under which it is served."""
    policy: Policy = field(default_factory=Policy)
    limits: Limits = field(default_factory=Limits)
    webhook: str | None = None


def settings_from(text: str) -> WatchSettings:
    """Return the settings in a file. Raises ValueError, KeyError, TypeError or AttributeError for any other."""
    document = json.loads(text)
    if document["schema"] != 1:
        raise ValueError("the settings have another schema")
    wish = dict(document["watch"])
    limits = limits_of(window_s=wish.pop("window_seconds"), hang_s=wish.pop("hang_seconds"))
    return WatchSettings(
        stack=document["stack"],
        address=document["address"],
        model=document["model"],
        webhook=wish.pop("webhook"),
        policy=Policy(**wish),
        limits=limits,
    )
