"""Results on the disk."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, Final

from gemmaspec.errors import UsageError

RESULT: Final = "result.json"


def read_result(path: Path) -> dict[str, Any]:
    """Return a result: a file, or a folder that bench wrote. Raises UsageError for anything else."""
    from gemmaspec.bench import result

    return result.parse(read_text(path, limit=result.MAX_BYTES), file=str(_file(path)))


def read_text(path: Path, *, limit: int) -> str:
    """Return the text of a file, or of the result in a folder. Raises UsageError if it is unreadable or too large."""
    file = _file(path)
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # opening a pipe would wait for ever
            raise UsageError(f"{file}: not a file")
        if file.stat().st_size > limit:
            raise UsageError(f"{file}: larger than {limit // 2**20} MiB, too large for a result")
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"missing file {file}", hint="gemmaspec bench PROFILE") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file}: not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"{file}: cannot read it: {error.strerror}") from None


def _file(path: Path) -> Path:
    return path / RESULT if path.is_dir() else path
