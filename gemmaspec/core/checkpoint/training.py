"""What name and card of a checkpoint say of its training: with Google's quantization (QAT), or further by others.

A head guesses the next tokens of the model that it was trained with. The more another training has moved that model's
answers, the fewer of its guesses are accepted. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gemmaspec.core.checkpoint.model import Checkpoint

_QAT: Final = re.compile(r"(?<![a-z0-9])qat(?![a-z0-9])", re.IGNORECASE)
_TUNED: Final = re.compile(
    r"abliterat\w*|obliterat\w*|uncensored|unfiltered|heretic|decensored|roleplay|merge[ds]?|finetun\w*|sft|dpo|grpo"
    r"|lora|japanese|korean|chinese|german|french|spanish|portuguese|italian|russian|turkish|arabic|hindi|vietnamese"
    r"|thai|indonesian|polish|dutch|ukrainian|persian|hebrew|swedish|czech",
    re.IGNORECASE,
)
"""Words for another training that people put into names."""
_WORD: Final = r"(?<![a-z])(?:{})(?![a-z])"
_GOOGLE: Final = re.compile(r"google/gemma-4-", re.IGNORECASE)


def is_qat(name: str) -> bool:
    """Return whether a name says that the model was trained with its quantization: the word `qat`."""
    return _QAT.search(_last(name)) is not None


def trained_further(name: str, checkpoint: Checkpoint | None = None) -> str | None:
    """Return what says that others have trained a model further: a word of its name, or its card's base; else None.

    A quantized copy does not count: its card names one of Google's models as its base.
    """
    found = re.search(_WORD.format(_TUNED.pattern), _last(name), re.IGNORECASE)
    if found:
        return f"its name has {found[0]!r}"
    for base in checkpoint.base_models if checkpoint else ():
        named = re.search(_WORD.format(_TUNED.pattern), _last(base), re.IGNORECASE)
        if named and not _GOOGLE.match(base):
            return f"its card names {base}"
    return None


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]
