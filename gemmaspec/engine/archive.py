"""A stack's files as an archive, for the volume of a daemon that cannot mount this machine's folders."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from gemmaspec.files import read_regular
from gemmaspec.stack.build import STACK_FILES


def stack_archive(folder: Path) -> bytes:
    """Return a tar of the files that a server reads, owned by root and writable by nobody.

    Raise UnreadableFile for a file of the stack that is a link, a folder or unreadable.
    """
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in STACK_FILES:
            content = read_regular(folder / name) if name != "compose.yaml" else None
            if content is not None:
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o444
                tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()
