"""`render`: write a profile's stack into a folder, and lose nothing of the user's there."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gemmaspec.deploy.owner import owned
from gemmaspec.deploy.stacks import stack_folder
from gemmaspec.errors import UsageError
from gemmaspec.profile.load import Loaded
from gemmaspec.stack import folder as stack_files
from gemmaspec.stack.folder import Rendered


def render(loaded: Loaded, stack: Rendered, out: Path, *, force: bool = False) -> list[str]:
    """Write the stack into `out` and return the names of its files.

    Raises UsageError, unless `force`, for files there that gemmaspec did not write, or that were changed since;
    EnvironmentMissing for what cannot be written, GemmaspecError when another command holds the stack in that folder.
    """
    name = loaded.profile.name
    in_state = out.absolute() == stack_folder(name)
    with owned(name, "render") if in_state else contextlib.nullcontext():
        if not force and (strange := stack_files.strangers(stack, out)):
            raise UsageError(
                f"gemmaspec did not write {', '.join(map(str, strange))}, or it was changed since; nothing was written",
                hint=f"gemmaspec render {loaded.typed} --out {out} --force    # replaces or removes it",
            )
        return stack_files.write(stack, out)
