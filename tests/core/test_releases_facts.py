"""The facts about releases, as they are looked up; and the rules written by hand, held against what was extracted."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from extraction.rows import _flag, write
from packaging.specifiers import SpecifierSet

from gemmaspec.check.lint import patching
from gemmaspec.check.lint.patching import NOT_REQUIRED, REQUIRED_HERE
from gemmaspec.check.lint.training import EXACT_NAMES
from gemmaspec.core import data
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile import graphs
from gemmaspec.core.releases import flags as table
from gemmaspec.core.releases.backends import backend_for
from gemmaspec.core.releases.drafting import METHODS, transformers_for
from gemmaspec.core.releases.facts import Facts, facts_for, nearest, newest, releases, rows_of, spans
from gemmaspec.core.releases.table import Fact

SHELF = Shelf((data.PATCHES,))
ALIASES = "_mtp"
WORDS = {
    "eagle3 with pipeline parallelism": "EAGLE3 with pipeline parallelism",
    "use_heterogeneous_vocab": "heterogeneous-vocabulary draft models",
}
"""What a rule for the model runner says, and how vLLM's own code calls it."""


def facts(vllm: str) -> Facts:
    found = facts_for(vllm)
    assert found
    return found


def every() -> list[Facts]:
    return [facts(release) for release in releases()]


def test_the_table_begins_with_the_first_release_that_has_gemma_4() -> None:
    assert releases()[0] == "0.19.0"
    assert releases()[-1] == newest()
    assert facts_for("0.18.0") is None
    assert facts_for("0.32.0+cpu") is None


@pytest.mark.parametrize(
    ("vllm", "release"),
    [
        ("0.26.0", "0.26.0"),
        ("0.32.0+cpu", "0.32.0"),
        ("0.26.1.dev3+gabc", "0.26.0"),
        ("0.18.2rc1", "0.19.0"),
        ("99.0", newest()),
        ("unknown", newest()),
    ],
)
def test_another_version_is_taken_for_the_release_that_it_grew_out_of(vllm: str, release: str) -> None:
    assert nearest(vllm) == release


@pytest.mark.parametrize(
    ("kind", "name", "where"),
    [
        ("flag", "--calculate-kv-scales", "up to 0.27.1"),
        ("flag", "--linear-backend", "from 0.22.0 on"),
        ("flag", "--port", "in all releases from 0.19.0 on"),
        ("flag", "--num-speculative-tokens", f"in no release from 0.19.0 to {newest()}"),
        ("variable", "VLLM_NVFP4_GEMM_BACKEND", "up to 0.23.0"),
        ("variable", "VLLM_TEST_FORCE_FP8_MARLIN", "up to 0.28.0"),
        ("speculative key", "speculative_token_tree", "up to 0.20.2"),
        ("speculative key", "synthetic_acceptance_rate", "up to 0.19.1"),
        ("speculative key", "attention_backend", "from 0.21.0 on"),
        ("reasoning parser", "gemma4", "in all releases from 0.19.0 on"),
        ("architecture", "Gemma4MTPModel", "from 0.21.0 on"),
        ("KV cache dtype", "nvfp4", "from 0.20.0 on"),
    ],
)
def test_where_a_thing_exists_is_said_in_words(kind: str, name: str, where: str) -> None:
    assert spans(kind, name) == where


def test_what_the_engine_fills_in_itself_is_no_speculative_key() -> None:
    for one in every():
        assert not {key for key in one.speculative_keys if key.endswith(("model_config", "parallel_config"))}


def test_methods_are_the_only_values_of_method() -> None:
    assert facts("0.32.0").speculative_values["rejection_sample_method"] == {"standard", "synthetic", "block"}
    assert "quantization" not in facts("0.32.0").speculative_values
    assert "dspark" not in facts("0.24.0").speculative_values["method"]


def test_a_backend_is_compared_as_vllm_compares_it() -> None:
    flag = facts("0.32.0").flags["--moe-backend"]
    assert flag.takes("FlashInfer-CUTLASS")
    assert not flag.takes("flashinfer cutlass")
    assert not facts("0.32.0").flags["--kv-cache-dtype"].takes("FP8")
    assert facts("0.33.0").flags["--kv-cache-dtype"].takes("anything")


@pytest.mark.parametrize("method", METHODS, ids=lambda row: f"{row.method} {row.versions}")
def test_every_patch_that_a_method_needs_is_shipped_and_is_for_those_releases(method: object) -> None:
    assert method in METHODS
    row = METHODS[METHODS.index(method)]  # type: ignore[arg-type]
    for patch in row.patches:
        assert row.method in SHELF[patch].text.required_by.methods
        versions = [SpecifierSet(variant.versions) for variant in SHELF[patch].text.variants]
        for release in SpecifierSet(row.versions).filter(releases()):
            assert any(one.contains(release) for one in versions), f"{patch} has no diff for {release}"
    for patch, when in row.patches_when:
        assert patch in SHELF
        assert when


def test_every_method_of_the_rules_is_one_of_its_releases() -> None:
    for one in every():
        for row in one.methods:
            assert row.method in one.speculative_values["method"], f"{row.method} {one.vllm}"


def test_the_method_of_the_profiles_works_with_the_hybrid_manager_off_everywhere() -> None:
    for one in every():
        assert [row.patches for row in one.methods_named("draft_model") if row.hybrid_manager == "off"]
    assert not [row for row in facts("0.25.0").methods_named("draft_model") if row.hybrid_manager == "on"]
    assert facts("0.19.0").methods_named("eagle3")[0].patches == ("eagle3-gemma4-target",)
    assert facts("0.20.2").methods_named("mtp") == ()


@pytest.mark.parametrize("release", releases())
def test_the_rule_for_the_runner_is_what_vllm_lists(release: str) -> None:
    """_get_v2_model_runner_unsupported_features and _is_default_v2_model_runner_model, as they were extracted."""
    one = facts(release)
    rows = rows_of(release)
    chooses, default = ("runner", "chooses") in rows, next(iter(named(rows, "runner", "default")), "")
    dense = chooses and (not default or default.endswith("or not model_config.is_moe"))
    assert one.runner.dense == ("v2" if dense else "v1")
    assert one.runner.mixture == ("v2" if chooses and not default else "v1")
    if one.runner.dense == "v1":
        return
    methods = {name for name in one.speculative_values["method"] if not name.endswith(ALIASES)}
    supported = named(rows, "runner", "methods_supported")
    refused = methods - supported if supported else named(rows, "runner", "methods_refused")
    assert one.runner.v1_methods & methods == refused
    assert {WORDS[word] for word in one.runner.v1_when if word in WORDS} == one.runner_unsupported & set(WORDS.values())
    assert "parallel drafting for EAGLE speculative decoding" in one.runner_unsupported
    assert "parallel_drafting" in one.runner.v1_when


@pytest.mark.parametrize("release", releases())
def test_the_rule_for_attention_is_what_vllm_asks_for(release: str) -> None:
    rows = rows_of(release)
    assert named(rows, "attention", "falls_to") == {"TRITON_ATTN"}
    has_4 = "4" in named(rows, "attention", "flash_attention")
    families = {int(family) // 10 for family in named(rows, "attention", "families")} if has_4 else set()
    on_hopper = backend_for(release, "9.0", masks=False, fp8=False)
    assert on_hopper == ("FLASH_ATTN" if 9 in families else "TRITON_ATTN")


def named(rows: Iterable[Fact], *above: str) -> set[str]:
    """Return the names below a fact."""
    return {row[len(above)] for row in rows if row[: len(above)] == above}


def test_some_transformers_that_works_is_one_that_the_wheel_asks_for() -> None:
    released = ["5.5.3", "5.10.4", "5.14.1", "5.16.1", "5.17.0", "5.19.0", "5.20.0"]
    for one in every():
        assert one.transformers_working == transformers_for(one.vllm)
        working = SpecifierSet(one.transformers_working).filter(released)
        agreed = any(SpecifierSet(one.transformers_declared).contains(version) for version in working)
        assert agreed == (one.vllm != "0.19.0"), one.vllm  # its METADATA wants one without Gemma 4


def test_packages_and_cuda_are_known_for_every_release() -> None:
    for one in every():
        assert one.torch.startswith("==2.")
        assert one.cuda.startswith(("12.", "13."))


def test_a_release_is_written_and_read_the_same() -> None:
    by_release = {release: rows_of(release) for release in releases()}
    for release, rows in by_release.items():
        flags = {("flags", flag.name, *rest) for flag in facts(release).flags.values() for rest in _flag(flag)}
        assert flags == {row for row in rows if row[0] == "flags"}
    for name, content in write(by_release).items():
        shipped = Path(table.__file__).parent / "data" / f"{name}.json"
        assert json.loads(shipped.read_text(encoding="utf-8")) == content


def test_nothing_is_read_before_it_is_asked_for() -> None:
    """`profile lint` has a second for all profiles: an import of the look-ups must not load the table."""
    code = (
        "import gemmaspec.core.releases.facts as facts, sys;"
        "assert not facts.table.whole_table.cache_info().currsize; assert 'httpx' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_shipped_patch_is_required_by_a_rule_or_says_why_none_can() -> None:
    by_method = {patch for row in METHODS for patch in (*row.patches, *(name for name, _ in row.patches_when))}
    defects = {name for name, patch in SHELF.items() if patch.text.purpose == "defect"}
    by_other_rules = {graphs.PATCH, EXACT_NAMES}  # GS501, GS233
    assert defects == by_method | REQUIRED_HERE | set(NOT_REQUIRED) | by_other_rules
    assert not (by_method | REQUIRED_HERE) & set(NOT_REQUIRED)
    assert all(SHELF[patch].text.errors for patch in NOT_REQUIRED), "then the failed start must name it"


def test_every_constant_that_names_a_patch_is_used_by_a_rule() -> None:
    """A name in REQUIRED_HERE that no rule yields would hide a patch that nothing requires."""
    tree = ast.parse(Path(patching.__file__).read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    used = {node.id for function in functions for node in ast.walk(function) if isinstance(node, ast.Name)}
    names = {name for name, value in vars(patching).items() if isinstance(value, str) and value in REQUIRED_HERE}
    assert names <= used
