"""Everything that can be read from the files of one vLLM release without importing it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from extraction import names
from extraction.attention import Attention, attention_of
from extraction.flags import configs_in, flags_of
from extraction.runner import RunnerChoice, runner_of
from extraction.sources import Read, Sources, Unexpected
from extraction.values import Configs
from gemmaspec.core.releases.flags import Flag

METADATA: Final = "METADATA"
"""The path that makes `read` return the METADATA of vLLM's dist-info, or None if it is missing."""


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """The facts in the files of one vLLM. An empty set of values means that any text is allowed."""

    flags: dict[str, Flag]
    speculative: dict[str, frozenset[str]]
    environment: dict[str, frozenset[str]]
    environment_forms: dict[str, str]
    """The forms of variables that are converted (values.py)."""
    configs: Configs
    """The keys of configuration classes that a flag takes as JSON: class → key → form."""
    reasoning_parsers: frozenset[str]
    tool_call_parsers: frozenset[str]
    quantizations: frozenset[str]
    deprecated_quantizations: frozenset[str]
    kv_cache_dtypes: frozenset[str]
    attention_backends: frozenset[str]
    kv_connectors: frozenset[str]
    ec_connectors: frozenset[str]
    architectures: frozenset[str]
    metrics: frozenset[str]
    runner: RunnerChoice
    attention: Attention
    torch: str
    """Version specifiers; empty without METADATA."""
    transformers: str
    python: str
    cuda: str = ""
    """Of the released image; empty if its Dockerfile was not read."""


def extract(read: Read) -> Extracted:
    """Extract all facts. Raise Unexpected, with the place, if vLLM's code has a form that no release had so far."""
    try:
        return _extract(Sources(read), _metadata(read(METADATA)))
    except RecursionError:
        raise Unexpected(
            "classes, aliases or expressions of this vLLM release refer to each other in a circle"
        ) from None


def _extract(sources: Sources, metadata: Mapping[str, str]) -> Extracted:
    flags = flags_of(sources)
    return Extracted(
        flags=flags,
        environment_forms=names.environment_forms_of(sources),
        configs=configs_in(sources, flags.values()),
        speculative=names.speculative_of(sources),
        environment=names.environment_of(sources),
        reasoning_parsers=names.reasoning_parsers_of(sources),
        tool_call_parsers=names.tool_call_parsers_of(sources),
        quantizations=names.quantizations_of(sources),
        deprecated_quantizations=names.deprecated_quantizations_of(sources),
        kv_cache_dtypes=names.kv_cache_dtypes_of(sources),
        attention_backends=names.attention_backends_of(sources),
        kv_connectors=names.connectors_of(sources, names.KV_CONNECTORS),
        ec_connectors=names.connectors_of(sources, names.EC_CONNECTORS),
        architectures=names.architectures_of(sources),
        metrics=names.metrics_of(sources),
        runner=runner_of(sources),
        attention=attention_of(sources),
        **metadata,
    )


def cuda_of(dockerfile: str) -> str | None:
    """Return the CUDA version of the released image, from docker/Dockerfile of the sdist."""
    found = re.search(r"(?m)^ARG CUDA_VERSION=([0-9.]+)\s*$", dockerfile)
    return found[1] if found else None


def _metadata(content: bytes | None) -> dict[str, str]:
    from packaging.metadata import InvalidMetadata, Metadata  # slow to import, and not needed for a look-up

    if content is None:
        return {"torch": "", "transformers": "", "python": ""}
    try:
        found = Metadata.from_email(content, validate=False)
        requires, python = found.requires_dist or [], str(found.requires_python or "")
    except (InvalidMetadata, ValueError):
        raise Unexpected("METADATA is invalid") from None
    wanted = {one.name: str(one.specifier) for one in requires if one.name in ("torch", "transformers")}
    return {"python": python, "torch": "", "transformers": ""} | wanted
