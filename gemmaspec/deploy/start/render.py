"""`render`: write a profile's stack into a folder without losing any of the user's files."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gemmaspec.deploy.kept.owner import owned
from gemmaspec.deploy.kept.stacks import stack_folder
from gemmaspec.errors import UsageError
from gemmaspec.profile.load import Loaded
from gemmaspec.stack import folder as stack_files
from gemmaspec.stack.folder import Rendered


def render(loaded: Loaded, stack: Rendered, out: Path, *, force: bool = False) -> list[str]:
    """Write the stack into `out` and return the names of its files.

    Unless `force`, raises UsageError for files that gemmaspec did not write or that were changed since. Raises
    EnvironmentMissing for a file that cannot be written, GemmaspecError if another command has locked the folder.
    """
    name = loaded.profile.name
    in_state = out.absolute() == stack_folder(name)
    with owned(name, "render") if in_state else contextlib.nullcontext():
        if not force and (strange := stack_files.strangers(stack, out)):
            raise UsageError(
                f"gemmaspec did not write {', '.join(map(str, strange))}, or it was changed since. Nothing was written",
                hint=f"gemmaspec render {loaded.typed} --out {out} --force    # overwrites or removes it",
            )
        return stack_files.write(stack, out)
