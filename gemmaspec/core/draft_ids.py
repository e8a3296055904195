"""The ids that a draft may propose (`draft.ids`): counted in texts, written as ranges, and read again.

The file is JSON: `ids` is a text of ascending ranges, such as "0-255,258,300-4095"; what else is in it tells where they
come from. The patch mtp-draft-ids reads the same text.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from gemmaspec.core.errors import ProfileError
from gemmaspec.core.files import UnreadableFile, read_regular

PATCH: Final = "mtp-draft-ids"
VARIABLE: Final = "GEMMASPEC_DRAFT_IDS"
"""The variable in which the patched vLLM finds the path of the file."""
FILE: Final = "draft-ids.json"
"""The file in a stack."""
MOST: Final = 2**22
"""Ids below this; the largest vocabulary of a known model has 262,144."""
_RANGE: Final = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?", re.ASCII)


def chosen(counts: Mapping[int, int], *, vocabulary: int, most: int) -> tuple[int, ...]:
    """Return the ids to keep, ascending: the most frequent ones, then the lowest, up to `most` of them.

    The lowest ids of Gemma's tokenizer are its control tokens and bytes, and after those the pieces that were merged
    first, which are the most frequent of its own training. So a list of few counts still serves other texts.
    """
    counted = sorted((one for one in counts if 0 <= one < vocabulary), key=lambda one: (-counts[one], one))
    kept = set(counted[:most])
    for one in range(vocabulary):
        if len(kept) >= most:
            break
        kept.add(one)
    return tuple(sorted(kept))


def as_ranges(ids: Iterable[int]) -> str:
    """Return ascending ids as the file has them."""
    parts = []
    for _, group in itertools.groupby(enumerate(ids), key=lambda pair: pair[1] - pair[0]):
        run = [one for _, one in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(parts)


def parsed(text: str) -> tuple[int, ...]:
    """Return the ids of a file's text. Raise ValueError, which says what is wrong with it."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if isinstance(document, dict):
        ranges = document.get("ids")
    else:
        ranges = None
    if not isinstance(ranges, str) or not ranges:
        raise ValueError('it has no "ids", a text of ranges such as "0-255,258"')
    found: list[int] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if not match:
            raise ValueError(f"{part[:40]!r} is not a range such as 0-255")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= MOST or (found and first <= found[-1]):
            raise ValueError(f"the range {part} is not above the one before it, or reaches {MOST:,}")
        found.extend(range(first, last + 1))
    return tuple(found)


def read(path: str) -> tuple[int, ...]:
    """Return the ids of the file that a profile names. Raise ProfileError for one that cannot be used."""
    file = Path(path).expanduser()
    hint = "gemmaspec bench PROFILE --save-ids FILE writes one"
    try:
        content = read_regular(file, follow=True)
        if content is None:
            raise ValueError("there is no such file")
        return parsed(content.decode("utf-8"))
    except UnreadableFile as error:
        raise ProfileError(f"draft.ids: {error.message}", hint=hint) from None
    except UnicodeDecodeError:
        raise ProfileError(f"draft.ids: {file}: it is not UTF-8", hint=hint) from None
    except ValueError as error:
        raise ProfileError(f"draft.ids: {file}: {error}", hint=hint) from None


def served(path: str) -> str:
    """Return the text of the file that a server reads, with the ids of the profile's file. Raise as `read`."""
    return json.dumps({"ids": as_ranges(read(path))}) + "\n"
