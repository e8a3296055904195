"""How the cells of one run are measured, on whichever server, and with which prompts: bench and tune share it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmaspec.check.predict.comparable import GREEDY
from gemmaspec.core import data
from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile.model import Profile
from gemmaspec.measure.bench import cell_json
from gemmaspec.measure.bench.cells import Cell, Task
from gemmaspec.measure.bench.prompts import Prompt, PromptSet, mixed, read_prompts
from gemmaspec.measure.bench.samples import MeasuredCell
from gemmaspec.measure.bench.settings import OWN, Asked
from gemmaspec.measure.cell import Asking, measure_cell
from gemmaspec.measure.lengths import fitting, of_length
from gemmaspec.run.engine.server import Server
from gemmaspec.run.kept.stack_lock import StartProgress


class Measuring:
    """The prompts and settings that every arm of a run is measured with."""

    def __init__(
        self, asked: Asked, prompts: Sequence[Prompt], progress: StartProgress, *, exactly: bool = False
    ) -> None:
        """`exactly`: prompts have just as many tokens as a cell, and no meaning; answers are timed apart from them."""
        self._asked, self._prompts, self._progress, self._exactly = asked, prompts, progress, exactly
        self._made: dict[int | None, list[Prompt]] = {}

    def asking(self, server: Server, key: str | None, profile: Profile) -> Asking:
        """Return how a profile's server is asked."""
        return Asking(
            server=server,
            api_key=key,
            asked=self._asked,
            calls_tools=profile.chat.tool_call_parser is not None,
        )

    def sampling(self, ran: Mapping[str, Any]) -> str:
        """Return how answers were sampled; `ran` is what is known of the server."""
        temperature = self._asked.temperature
        if temperature is None:
            return str(ran.get("sampling", "as the server does unasked"))
        if temperature:
            return f"temperature {temperature:g}"
        return GREEDY

    def cell(self, asking: Asking, task: Task, *, limit: int | None) -> dict[str, Any]:
        """Measure a cell, again where the machine moved meanwhile, and return it as a result holds it.

        `limit` is the server's context in tokens. Raises Broken when the server fails, UsageError when no prompt fits.
        """
        prompts = self._for(asking, task.cell, limit)
        repeated, measured = 0, self._measured(asking, task, prompts)
        while not measured.steady and repeated < self._asked.repeats:
            repeated, measured = repeated + 1, self._measured(asking, task, prompts)
        return cell_json.cell_json(task, measured, repeated=repeated)

    def _measured(self, asking: Asking, task: Task, prompts: Sequence[Prompt]) -> MeasuredCell:
        asked = mixed(prompts, 2 * task.cell.concurrency if task.cell.concurrency > 1 else 0)
        return measure_cell(asking, task.cell, asked, drafts=task.k > 0, apart=self._exactly)

    def _for(self, asking: Asking, cell: Cell, limit: int | None) -> list[Prompt]:
        """Return the prompts of a context, made once: every arm gets the same."""
        if cell.context not in self._made:
            prompts = list(self._prompts)
            if cell.context is None:
                made = prompts
            else:
                made = of_length(asking, prompts, cell.context, exactly=self._exactly)
            kept, left_out = fitting(asking, made, limit=limit)
            if left_out or len(made) < len(self._prompts):
                number = len(self._prompts) - len(kept)
                self._progress.note(
                    f"{number} of {len(self._prompts)} prompts are too long for this server and are skipped"
                )
            self._made[cell.context] = kept
        return self._made[cell.context]


def prompt_set(named: str, note: Callable[[str], None]) -> PromptSet:
    """Return a set of prompts: OWN for those that ship, a folder, or OWNER/NAME@REVISION.

    A folder comes before a data set of the same name. Raises UsageError for a missing folder and for lines that are
    no prompts, EnvironmentMissing for a data set that cannot be fetched.
    """
    if named == OWN:
        return read_prompts(data.PROMPTS, name=OWN)
    if os.path.exists(named):  # noqa: PTH110 - Path.exists raises for a name that is too long
        return read_prompts(Path(named), name=named)
    from gemmaspec.run.models.datasets import fetch_dataset

    fetched = fetch_dataset(named, note)
    if fetched is None:
        raise UsageError(
            f"--prompts: missing folder {named}",
            hint="a data set of the Hugging Face Hub is named with its revision: --prompts OWNER/NAME@REVISION",
        )
    folder, name = fetched
    return read_prompts(folder, name=name)
