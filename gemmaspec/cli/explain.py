"""`gemmaspec explain`."""

from __future__ import annotations

from typing import Annotated

from gemmaspec.cli import options, output


def explain(
    words: Annotated[list[str] | None, options.argument("[CODE]")] = None,
    json: options.Json = False,
) -> None:
    """Explain a code or a word that gemmaspec prints; without one, list what can be asked."""
    from gemmaspec.look import explain as use_case

    if not words:
        listed = use_case.names()
        if json:
            output.json_data({"names": {kind: list(names) for kind, names in listed.items()}})
            return
        for kind, names in listed.items():
            output.told(f"{kind + ':':<38}{', '.join(names)}")
        return
    entries = use_case.explain(" ".join(words))
    if json:
        output.json_data({"explained": entries})
        return
    for entry in entries:
        output.data(f"{entry.name}, {entry.kind}")
        for line in entry.text.splitlines():
            output.told(f"  {line}" if line else "")
