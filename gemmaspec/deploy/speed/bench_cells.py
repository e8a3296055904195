"""How the cells of one run are measured, on whichever server: bench and tune share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmaspec.bench import result
from gemmaspec.bench.cells import Cell, Task
from gemmaspec.bench.prompts import Prompt, mixed
from gemmaspec.bench.samples import Measured
from gemmaspec.deploy.start.starting import StartProgress
from gemmaspec.engine.server import Server
from gemmaspec.measure.cell import Asking, measure_cell
from gemmaspec.measure.lengths import fitting, of_length
from gemmaspec.profile.model import Profile


class Measuring:
    """The prompts and settings that every arm of a run is measured with."""

    def __init__(
        self,
        *,
        prompts: Sequence[Prompt],
        max_tokens: int,
        ignore_eos: bool,
        temperature: float | None,
        timeout_s: float,
        repeats: int,
        progress: StartProgress,
    ) -> None:
        self._prompts, self._progress = prompts, progress
        self._max_tokens, self._ignore_eos, self._temperature = max_tokens, ignore_eos, temperature
        self._timeout_s, self._repeats = timeout_s, repeats
        self._made: dict[int | None, list[Prompt]] = {}

    def asking(self, server: Server, key: str | None, profile: Profile) -> Asking:
        """Return how a profile's server is asked."""
        return Asking(
            server=server,
            api_key=key,
            max_tokens=self._max_tokens,
            ignore_eos=self._ignore_eos,
            temperature=self._temperature,
            timeout_s=self._timeout_s,
            calls_tools=profile.chat.tool_call_parser is not None,
        )

    def cell(self, asking: Asking, task: Task, *, limit: int | None) -> dict[str, Any]:
        """Measure a cell, again where the machine moved meanwhile, and return it as a result holds it.

        `limit` is the server's context in tokens. Raises Broken when the server fails, UsageError when no prompt fits.
        """
        prompts = self._for(asking, task.cell, limit)
        repeated, found = 0, _measured(asking, task, prompts)
        while not found.steady and repeated < self._repeats:
            repeated, found = repeated + 1, _measured(asking, task, prompts)
        return result.cell_json(task, found, repeated=repeated)

    def _for(self, asking: Asking, cell: Cell, limit: int | None) -> list[Prompt]:
        """Return the prompts of a context, made once: every arm gets the same."""
        if cell.context not in self._made:
            own = list(self._prompts)
            made = own if cell.context is None else of_length(asking, own, cell.context)
            kept, left_out = fitting(asking, made, limit=limit)
            if left_out or len(made) < len(self._prompts):
                number = len(self._prompts) - len(kept)
                self._progress.note(
                    f"{number} of {len(self._prompts)} prompts are too long for this server and are skipped"
                )
            self._made[cell.context] = kept
        return self._made[cell.context]


def _measured(asking: Asking, task: Task, prompts: Sequence[Prompt]) -> Measured:
    asked = mixed(prompts, 2 * task.cell.concurrency if task.cell.concurrency > 1 else 0)
    return measure_cell(asking, task.cell, asked, drafts=task.k > 0)
