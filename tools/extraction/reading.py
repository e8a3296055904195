"""The facts of one vLLM, from a released wheel or from a folder."""

from __future__ import annotations

from typing import Final

from extraction import names
from extraction.attention import FLASH, MODELS
from extraction.extract import METADATA, Extracted, extract
from extraction.flags import ENGINE, SERVE
from extraction.sources import Unexpected
from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.trees.reader import Reader

_AT_ONCE: Final = (
    *(SERVE, ENGINE, MODELS, FLASH, names.ENVIRONMENT, names.REASONING, names.TOOLS, names.QUANTIZATION),
    *(names.REGISTRY, names.BACKENDS, *names.METRICS),
    "vllm/entrypoints/chat_utils.py",
    "vllm/entrypoints/openai/cli_args.py",
    "vllm/entrypoints/openai/models/protocol.py",
    "vllm/model_executor/model_loader/__init__.py",
    "vllm/model_executor/model_loader/tensorizer.py",
    "vllm/transformers_utils/config.py",
)
"""Files to read in one request, with vllm/config/. The rest follows as needed, one request each."""


class CachedFiles:
    """The files of one vLLM, each read once; callable as `extract` requires."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._metadata = f"vllm-{reader.vllm}.dist-info/METADATA"
        config = [path for path in reader.names() if path.startswith("vllm/config/")]
        self._found = dict(reader.files([self._metadata, *_AT_ONCE, *config]))

    def __call__(self, path: str) -> bytes | None:
        """Return one file; METADATA is that of the dist-info."""
        wanted = self._metadata if path == METADATA else path
        if wanted not in self._found:
            self._found |= self._reader.files([wanted])
        return self._found[wanted]


def extract_from(reader: Reader) -> Extracted:
    """Return the facts of one vLLM. Raise EnvironmentMissing if it is unreadable or its code has an unknown form."""
    try:
        return extract(CachedFiles(reader))
    except Unexpected as error:
        raise EnvironmentMissing(f"cannot read the flags and names of {reader.place}: {error}") from None
