"""Which probes may decide at a start: those that told wrong fixes of their bug from right ones.

`tools/judge_probes.py` puts fixes that only look right, and right ones in other words, into a released vLLM and asks
the probe of each. It keeps the result in judged.json, with the digest of what it asked. A probe that is changed
afterwards has another digest, and decides nothing until it is judged again.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gemmaspec.core import data

PROBE: Final = "probe.py"
JUDGED: Final = "judged.json"
LEAST_WRONG: Final = 12
"""How many wrong fixes a judged probe was run on, none of which it called closed."""
LEAST_RIGHT: Final = 5
"""How many right fixes in other words it was run on."""
LEAST_RECOGNISED: Final = 0.8
"""The share of them that it has to call closed."""


class Judgement(BaseModel):
    """What judged.json says."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    probe: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """The digest of the probe, and of what it imports from `_shared`."""
    releases: tuple[str, ...] = Field(min_length=1)
    """The releases of vLLM into which the fixes were put."""
    wrong: int = Field(ge=0)
    called_closed: int = Field(ge=0)
    """Wrong fixes that the probe calls right."""
    right: int = Field(ge=0)
    recognised: int = Field(ge=0)
    """Right fixes that it calls right."""
    schema_: Annotated[Literal[1], Field(alias="schema")] = 1

    @property
    def passes(self) -> bool:
        """Return whether a probe with this result may decide."""
        enough = self.wrong >= LEAST_WRONG and self.right >= LEAST_RIGHT
        return enough and self.called_closed == 0 and self.recognised >= LEAST_RECOGNISED * self.right


@dataclass(frozen=True, kw_only=True)
class ProbeFiles:
    """A probe's text, and those of the modules of `_shared` that it imports."""

    text: str
    beside: dict[str, str]

    @property
    def digest(self) -> str:
        """The digest of all of it."""
        rows = json.dumps([self.text, sorted(self.beside.items())])
        return hashlib.sha256(rows.encode()).hexdigest()


def probe_files(folder: Path) -> ProbeFiles | None:
    """Return what a patch's probe consists of; None for a patch without one, or with one that cannot be read."""
    try:
        text = (folder / PROBE).read_text(encoding="utf-8")
        beside: dict[str, str] = {}
        waiting = [text]
        while waiting:
            for name in _shared_imports(waiting.pop()):
                if name not in beside:
                    beside[name] = (data.PROBES / name).read_text(encoding="utf-8")
                    waiting.append(beside[name])
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None
    return ProbeFiles(text=text, beside=beside)


def _shared_imports(text: str) -> Iterator[str]:
    """Yield the files of `_shared` that a module imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        yield from (f"{name}.py" for name in names if (data.PROBES / f"{name}.py").is_file())


def judgement_of(folder: Path) -> Judgement | None:
    """Return how a patch's probe was judged; None for one that was not, or is not the one that was."""
    files = probe_files(folder)
    try:
        found = Judgement.model_validate_json((folder / JUDGED).read_bytes())
    except (OSError, ValidationError, ValueError):
        return None
    if files is not None and found.probe == files.digest:
        return found
    return None


def deciding_probe(folder: Path) -> ProbeFiles | None:
    """Return the probe that may decide at a start; None where none may."""
    found = judgement_of(folder)
    if found is not None and found.passes:
        return probe_files(folder)
    return None
