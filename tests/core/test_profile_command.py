"""One reading of the command line: lint, fit, smoke, the rules and the stacks say the same of each form of a flag."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest

import gemmaspec
from gemmaspec.check.fit.demand import Demand, demand_of
from gemmaspec.core.checkpoint.model import Checkpoint
from gemmaspec.core.errors import ProfileError, UsageError
from gemmaspec.core.profile.device import Device, named
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.resolved.answer import known
from gemmaspec.core.resolved.resolve import Resolved, resolved_of
from gemmaspec.look.smoke import _lacks
from gemmaspec.measure.smoke.check import Need
from gemmaspec.run.stack.paths import container_paths
from gemmaspec.run.stack.serve import serve_command
from tests.support.fit_shapes import checkpoint

FORMS = {
    "--kv-sharing-fast-prefill": ("--kv-sharing-fast-prefill", "--kv_sharing_fast_prefill", "--kv-sharing"),
    "--disable-chunked-mm-input": ("--disable-chunked-mm-input", "--disable_chunked_mm_input", "--disable-chunked-mm"),
}
"""A flag in the forms that vLLM's parser takes."""


def profile(name: str, *words: str, sets: tuple[str, ...] = ()) -> Profile:
    return load_profile(name, overrides=[f"serve.extra_args={json.dumps(words)}", *sets]).profile


def by_lint(given: Profile, vllm: str) -> Resolved:
    return resolved_of(given, vllm=vllm)


def by_fit(given: Profile, vllm: str, *, size: str = "31B") -> Demand:
    device = named(MACHINES[given.machine])
    assert device
    return demand_of(resolved_of(given, vllm=vllm, device=device, target=checkpoint(size), draft=None))


@pytest.mark.parametrize("form", FORMS["--kv-sharing-fast-prefill"])
@pytest.mark.parametrize(
    ("name", "vllm", "size"), [("spark-31b-mtp", "0.25.0", "31B"), ("spark-26b-a4b-mtp", "0.29.0", "26B-A4B")]
)
def test_lint_and_fit_name_one_model_runner(name: str, vllm: str, size: str, form: str) -> None:
    given = profile(name, form)
    assert by_lint(given, vllm).runner == by_fit(given, vllm, size=size).runner == "v1"
    assert by_fit(profile(name), vllm, size=size).runner == "v2"


@pytest.mark.parametrize("form", FORMS["--disable-chunked-mm-input"])
def test_a_memory_plan_does_not_depend_on_the_form_of_a_flag(form: str) -> None:
    given = profile("spark-31b", form)
    assert by_lint(given, "0.32.0").command.switched("--disable-chunked-mm-input")
    assert by_fit(given, "0.32.0", size="E2B").whole_items
    assert not by_fit(profile("spark-31b"), "0.32.0", size="E2B").whole_items


CPU = "machine=cpu"
PROCESSOR = Device(name="cpu", memory=64 * 2**30, cpu=True)


@pytest.mark.parametrize(
    ("name", "vllm", "size", "sets", "batch"),
    [
        ("spark-31b", "0.33.0", "31B", (), 2496),
        ("spark-31b", "0.33.0", "12B", ("target.model=google/gemma-4-12B-it",), 2496),
        ("spark-31b", "0.33.0", "31B", ("serve.enable_chunked_prefill=false", "serve.max_model_len=8192"), 8192),
        ("spark-31b", "0.26.0", "31B", ("serve.language_model_only=true",), 2496),
        ("spark-31b", "0.33.0", "31B", ("serve.language_model_only=true",), 2048),
        ("spark-31b", "0.33.0", "31B", (CPU, "serve.max_num_seqs=16"), 2496),
        ("spark-31b", "0.33.0", "E2B", (CPU, "target.model=google/gemma-4-E2B-it", "serve.max_num_seqs=16"), 2048),
        ("spark-31b", "0.33.0", "31B", ("serve.max_num_seqs=1", "serve.max_model_len=1024"), 1024),
    ],
)
def test_lint_and_fit_name_the_batch_that_the_engine_resolved(
    name: str, vllm: str, size: str, sets: tuple[str, ...], batch: int
) -> None:
    given = profile(name, sets=("serve.max_num_batched_tokens=", "patches=", *sets))
    target = unified() if size == "12B" else checkpoint(size)
    read = resolved_of(given, vllm=vllm, target=target)
    by_name = replace(read, target=None)
    assert (known(read.batch), known(by_name.batch)) == (batch, batch)
    device = named(MACHINES[given.machine]) if given.machine != "cpu" else PROCESSOR
    assert device
    assert (
        demand_of(resolved_of(given, vllm=vllm, device=device, target=target, draft=None)).max_num_batched_tokens
        == batch
    )


def unified() -> Checkpoint:
    """A 12B, which has no encoders."""
    both = {"text_config": {"use_bidirectional_attention": "vision"}}
    return replace(checkpoint("31B"), model_type="gemma4_unified", config=both)


def test_lmcache_turns_the_hybrid_manager_off() -> None:
    transfer = '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'
    assert by_lint(profile("spark-31b", "--kv-transfer-config", transfer), "0.33.0").hybrid is False
    assert by_lint(profile("spark-31b"), "0.33.0").hybrid


def test_a_shorter_draft_shortens_the_server() -> None:
    given = profile(
        "spark-31b-e2b",
        sets=(
            "patches=",
            "env.VLLM_USE_V2_MODEL_RUNNER=",
            "serve.disable_hybrid_kv_cache_manager=",
            "speculative.max_model_len=2048",
        ),
    )
    device = named(MACHINES["dgx-spark"])
    assert device
    for vllm, length in (("0.33.0", 2048), ("0.32.0", given.serve.max_model_len)):
        found = demand_of(
            resolved_of(given, vllm=vllm, device=device, target=checkpoint("31B"), draft=checkpoint("E2B"))
        )
        assert found.max_model_len == length


def test_fit_reads_what_lint_reads_of_other_flags() -> None:
    assert by_fit(profile("spark-31b", "--no-async-scheduling"), "0.32.0").batches == 1
    assert by_fit(profile("spark-31b", "--moe_backend=marlin"), "0.32.0").moe_backend == "marlin"
    assert by_fit(profile("spark-31b", "-n", "2"), "0.32.0").nodes == 2


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("-tp", "2"), "serve.tensor_parallel_size"),
        (("--max-num-b=4096",), "serve.max_num_batched_tokens"),
        (("-q", "fp8"), "target.quantization"),
    ],
)
def test_fit_wants_a_key_for_each_form_of_a_flag_that_has_one(words: tuple[str, ...], key: str) -> None:
    with pytest.raises(UsageError, match=key):
        by_fit(profile("spark-31b", *words), "0.32.0")


def test_fit_refuses_what_it_cannot_compute_in_each_form() -> None:
    for words in (("--kv_transfer_config={}",), ("-cc.mode=3",), ("--no-enable-chunked-prefill",)):
        with pytest.raises(UsageError, match="cannot compute"):
            by_fit(profile("spark-31b", *words), "0.32.0")


@pytest.mark.parametrize(
    "word", ["--speculative_config={}", "--speculative-conf={}", "-sc={}", "--api_key=x", "--api-k=x"]
)
def test_no_form_of_a_flag_goes_around_the_key_of_its_own(word: str) -> None:
    with pytest.raises(ProfileError, match="with its own key"):
        profile("spark-31b", word)


def test_no_form_of_a_rank_s_flag_is_given_beside_nodes() -> None:
    for words in (("-r", "1"), ("--node_rank=1",), ("--master-a=1.2.3.4",)):
        with pytest.raises(ProfileError, match="nodes: 2 already sets"):
            profile("spark-31b-mtp", *words, sets=("nodes=2",))


def test_smoke_takes_each_form_as_offered() -> None:
    given = profile(
        "spark-31b", "--reasoning_parser=gemma4", "--tool-call-p", "gemma4", "--no-enable-prefix", sets=("chat=",)
    )
    assert set(_lacks(given)) == {Need.CACHE}


@pytest.mark.parametrize("form", ["--disable-uvicorn-access-log", "--disable_uvicorn_access_log", "--disable-uvicorn"])
def test_an_access_log_that_is_off_gets_no_flag_of_ours(form: str) -> None:
    given = profile("tiny-cpu", form)
    assert "--disable-access-log-for-endpoints" not in serve_command(given, container_paths(given))


@pytest.mark.parametrize(
    ("words", "compiled"),
    [
        ((), "default"), (("-O2",), "-O2"), (("-O=2",), "-O2"), (("-O", "2"), "-O2"), (("--optimization_level", "2"), "-O2"),
        (("-cc.mode=3",), "mode=3"), (("-cc.mode", "3", "-cc.cudagraph_mode=NONE"), "mode=3,cudagraph_mode=NONE"),
        (("--compilation_config", '{"mode": 0}'), '{"mode":0}'), (("-cc", '{"mode": 0}', "-O1"), "-O1"),
    ],
)  # fmt: skip
def test_how_a_server_compiles_does_not_depend_on_the_form(words: tuple[str, ...], compiled: str) -> None:
    assert resolved_of(profile("spark-31b", *words)).compile == compiled


def test_nobody_else_reads_the_words() -> None:
    """Who needs a flag asks `core/profile/command.py`; the renderer passes the words on, and `tune` adds to them.

    The profile's own rules look at the form of an item, not at its meaning.
    """
    package = Path(gemmaspec.__file__).parent
    readers = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "extra_args"
    }
    assert readers == {
        "core/profile/command.py",
        "core/profile/rules.py",
        "run/stack/serve.py",
        "measure/tune/arms.py",
    }
