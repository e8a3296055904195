"""What findings quote from vLLM, held against every release: the words are there, in the releases that are named."""

from __future__ import annotations

import ast
from functools import cache

import pytest
from packaging.version import Version

from gemmaspec.core.launcher.launch import RELEASE
from gemmaspec.run.trees import listing as listing_of
from gemmaspec.run.trees.released import Releases
from gemmaspec.run.trees.tree import Tree

pytestmark = pytest.mark.network

SPECULATIVE = "vllm/config/speculative.py"
PROPOSER = ("vllm/v1/spec_decode/eagle.py", "vllm/v1/spec_decode/llm_base_proposer.py")
MODELOPT = "vllm/model_executor/layers/quantization/modelopt.py"
KV_CACHE = "vllm/model_executor/layers/quantization/kv_cache.py"
REGISTRY = "vllm/model_executor/models/registry.py"
LOADER = "vllm/model_executor/model_loader/default_loader.py"
INTERFACE = "vllm/v1/kv_cache_interface.py"
FILES = (SPECULATIVE, *PROPOSER, MODELOPT, KV_CACHE, REGISTRY, LOADER, INTERFACE)
FIRST, LAST = "0.19.0", "0.33.0"

CLAIMS = [
    ((INTERFACE,), "All attention layers in the same KV cache group must have the same window size", FIRST, LAST),
    ((SPECULATIVE,), "Target and draft model should have the same vocabulary size", FIRST, LAST),
    (PROPOSER, "All drafting layers should belong to the same kv cache group", FIRST, LAST),
    ((MODELOPT,), "ModelOpt currently only supports: ", FIRST, LAST),
    ((MODELOPT,), "was never loaded (still NaN)", "0.30.0", LAST),
    ((MODELOPT,), "W4A16_NVFP4", "0.21.0", LAST),
    ((KV_CACHE,), "Using KV cache scaling factor 1.0 for fp8_e4m3", FIRST, LAST),
    ((LOADER,), "weights were not initialized from checkpoint", FIRST, LAST),
    ((SPECULATIVE,), "eagle-", FIRST, LAST),
    ((SPECULATIVE,), "eagle3", FIRST, LAST),
    ((SPECULATIVE,), "dflash", "0.20.0", LAST),
    ((SPECULATIVE,), "dspark", "0.25.0", LAST),
    ((SPECULATIVE,), "gemma4_assistant", "0.21.0", LAST),
    ((SPECULATIVE,), "gemma4_unified_assistant", "0.23.0", LAST),
    ((SPECULATIVE,), "use_heterogeneous_vocab only works with", "0.25.0", LAST),
    ((REGISTRY,), "Gemma4UnifiedForConditionalGeneration", "0.23.0", LAST),
    ((REGISTRY,), "Gemma4DSparkModel", "0.26.0", LAST),
    ((MODELOPT,), "NVFP4_AWQ", None, None),
]


@cache
def releases() -> dict[str, Tree]:
    listing = listing_of.published()
    known = [one for one in listing.releases() if RELEASE.fullmatch(one)]
    versions = [one for one in known if Version(FIRST) <= Version(one) <= Version(LAST)]
    found = {}
    for tree in Releases(listing).open(versions, lambda _: FILES):
        assert isinstance(tree, Tree), tree
        found[tree.vllm] = tree
    return {version: found[version] for version in versions}


@cache
def texts(version: str, path: str) -> tuple[str, ...]:
    """Every string constant of a file; neighbouring literals are one."""
    source = releases()[version].read(path)
    nodes = ast.walk(ast.parse(source)) if source else ()
    return tuple(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


@pytest.mark.parametrize(("paths", "words", "first", "last"), CLAIMS, ids=[claim[1] for claim in CLAIMS])
def test_the_words_are_in_the_releases_that_are_named(
    paths: tuple[str, ...], words: str, first: str | None, last: str | None
) -> None:
    there = [version for version in releases() if any(words in text for path in paths for text in texts(version, path))]
    versions = list(releases())
    assert (versions[0], versions[-1]) == (FIRST, LAST)
    wanted = versions[versions.index(first) : versions.index(last) + 1] if first and last else []
    assert there == wanted


def test_the_guard_against_multimodal_targets_became_a_warning() -> None:
    refused = "Decoding with draft models or parallel drafting does not support multimodal models yet"
    for version in releases():
        raises = any(b"raise NotImplementedError" in part for part in _guards(version))
        quoted = any(refused in text for path in PROPOSER for text in texts(version, path))
        assert (raises and quoted) == (Version(version) < Version("0.21.0")), version


def _guards(version: str) -> list[bytes]:
    sources = [releases()[version].read(path) or b"" for path in PROPOSER]
    return [part[:700] for source in sources for part in source.split(b"def _raise_if_multimodal(self)")[1:]]
