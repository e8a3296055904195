"""Root causes, from the words of vLLM, torch, transformers and the operating system, and from real logs."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmaspec.core import data, strict_yaml
from gemmaspec.core.patching.bugs import bugs
from gemmaspec.core.patching.patch import load_patches
from gemmaspec.run.ready.failures import explain, find_cause
from gemmaspec.run.ready.known_failures import KILLED, TABLE, known_failures, table
from gemmaspec.run.ready.tracebacks import described, root_exception

LOGS = Path(__file__).parent.parent / "logs"
ROOT = Path(__file__).parent.parent.parent

SAID = {known.finding.code: list(known.said) for known in table() if known.said}
WINDOWS = "ValueError: All attention layers in the same KV cache group must have the same window size."
WRAPPER = (
    "(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)


def first(lines: list[str]) -> str | None:
    found = root_exception(lines)
    return found.text if found else None


ERRORS = [(patch.id, error) for patch in load_patches().values() for error in patch.text.errors]


@pytest.mark.parametrize(("patch", "error"), ERRORS)
@pytest.mark.parametrize("kind", ["", "RuntimeError: ", "  Value error, "])
def test_every_error_text_of_every_shipped_patch_is_answered_with_that_patch(patch: str, error: str, kind: str) -> None:
    text = error if error.startswith("KeyError") else f"{kind}{error}"
    log = [f"(Worker_TP1 pid=7) ERROR 11-20 17:50:25 [core.py:1510] {text.replace('…', '(33) 34, 7.5')}", WRAPPER]
    known = explain(log)
    assert known
    assert known.patches == (patch,)
    assert f"Add the patch {patch} to patches.required" in known.fix


def test_every_shipped_patch_has_error_texts_and_a_symptom() -> None:
    silent = {
        "gemma4-dflash-embedding-scale",  # fewer tokens are accepted, and nothing is printed
        "composite-full-graphs",  # the server starts, and is slower
        "draft-exact-names",  # vLLM's text is that of any layer for which this machine has no kernel
        "mtp-draft-ids",  # without it the list of ids is not read, and nothing is printed
        "mtp-dense-draft-parallel",  # its text is that of other dense models too: no-experts names the patch
    }
    defects = {name for name, patch in load_patches().items() if patch.text.purpose == "defect"}
    assert defects <= {bug.patch for bug in bugs()}
    assert {patch for patch, _ in ERRORS} == defects - silent
    assert all(patch.text.symptom for patch in load_patches().values())


def test_a_bug_whose_patch_is_in_is_not_the_cause() -> None:
    patch = "gemmaspec: patch kv-spec-uniform-valueerror: applies (0.19-0.32)"
    assert explain([patch, WINDOWS]) is None
    assert explain([patch.replace("applies", "conflict"), WINDOWS])


def test_a_patch_is_not_advised_for_a_release_that_it_is_not_written_for() -> None:
    groups = "AssertionError: All drafting layers should belong to the same kv cache group"
    known = explain(["gemmaspec: patching vllm 0.25.0 at /vllm", groups])
    assert known
    assert known.fix.startswith("Set serve.disable_hybrid_kv_cache_manager: true")


TWO_WORKERS = """\
(Worker_TP1 pid=12) ERROR 11-20 17:50:25 [multiproc_executor.py:953] WorkerProc failed to start.
(Worker_TP1 pid=12) ERROR 11-20 17:50:25 [multiproc_executor.py:953] Traceback (most recent call last):
(Worker_TP0 pid=11) ERROR 11-20 17:50:25 [multiproc_executor.py:953] WorkerProc failed to start.
(Worker_TP1 pid=12) ERROR 11-20 17:50:25 [multiproc_executor.py:953]   File "/o/vllm/v1/worker/input_batch.py", \
line 7, in make_dummy
(Worker_TP0 pid=11) ERROR 11-20 17:50:25 [multiproc_executor.py:953] Traceback (most recent call last):
(Worker_TP0 pid=11) ERROR 11-20 17:50:25 [multiproc_executor.py:953]   File "/o/vllm/distributed/x.py", line 3, in f
(Worker_TP1 pid=12) ERROR 11-20 17:50:25 [multiproc_executor.py:953]     assert num_reqs > 0
(Worker_TP0 pid=11) ERROR 11-20 17:50:25 [multiproc_executor.py:953] RuntimeError: Connection closed by peer
(Worker_TP1 pid=12) ERROR 11-20 17:50:25 [multiproc_executor.py:953] AssertionError
(EngineCore pid=9) ERROR 11-20 17:50:26 [core.py:1510] EngineCore failed to start.
(EngineCore pid=9) ERROR 11-20 17:50:26 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-20 17:50:26 [core.py:1510]   File "/o/vllm/v1/executor.py", line 7, in g
(EngineCore pid=9) ERROR 11-20 17:50:26 [core.py:1510] Exception: WorkerProc initialization failed due to an \
exception in a background process. See stack trace for root cause.
""".splitlines()


def test_of_several_workers_the_one_that_failed_first_is_shown_with_its_place() -> None:
    found = root_exception([*TWO_WORKERS, WRAPPER])
    assert found
    assert found.process == "Worker_TP1"
    assert list(described(found)) == [
        "AssertionError",
        "  at vllm/v1/worker/input_batch.py:7, in make_dummy",
        "     assert num_reqs > 0",
    ]


def test_an_exception_that_was_caught_before_is_not_what_ended_the_server() -> None:
    caught = ["Traceback (most recent call last):", '  File "/x.py", line 1, in f', "ImportError: no triton"]
    found = root_exception([*caught, *TWO_WORKERS])
    assert found
    assert found.text == "AssertionError"


def test_a_message_that_goes_on_below_its_exception_is_shown() -> None:
    log = [
        "RuntimeError: ",
        "        An attempt has been made to start a new process before the",
        "        current",
        "",
    ]
    assert first(log) == "RuntimeError: An attempt has been made to start a new process before the current"


def test_what_was_raised_while_another_was_handled_is_told_as_well() -> None:
    frame = ["Traceback (most recent call last):", '  File "/x.py", line 1, in f', "    x[1]"]
    log = [*frame, "KeyError: 1", "", "During handling of the above exception, another exception occurred:", "", *frame]
    found = root_exception([*log, "ValueError: no such model"])
    assert found
    assert (found.text, found.then) == ("KeyError: 1", "ValueError: no such model")


@pytest.mark.parametrize(("code", "line"), [(code, line) for code, lines in SAID.items() for line in lines])
def test_each_failure_is_known_by_its_words(code: str, line: str) -> None:
    log = [f"(EngineCore pid=7) ERROR 11-20 17:50:25 [core.py:1510] {line}", WRAPPER]
    known = explain(log)
    assert known
    assert known.code == code


PREFIXES = [
    "",
    "(EngineCore pid=7) ERROR 11-20 17:50:25 [core.py:1510] ",
    "(Worker_TP1 pid=12) ERROR 11-20 17:50:25 [multiproc_executor.py:953] ",
    "\x1b[1;36m(EngineCore_DP0 pid=9)\x1b[0;0m ERROR 11-20 17:50:25 [core.py:1510] ",
    "rank1  | (Worker_TP1 pid=12) ERROR 11-20 17:50:25 [multiproc_executor.py:953] ",
    "2026-11-20T17:50:25.123456789Z (EngineCore pid=7) ERROR 11-20 17:50:25 [core.py:1510] ",
]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_each_failure_is_known_behind_what_processes_and_engines_put_before_it(prefix: str) -> None:
    for code, lines in SAID.items():
        for line in lines:
            known = explain([prefix + line])
            assert (known.code if known else None) == code, line


QUIET = {
    "GS101": "argparse puts `error:` before it",
    "GS105": "a warning, and the start goes on",
    "GS309": "a warning, and the start goes on",
    "GS803": "a warning, and the start goes on",
}
"""Codes whose quoted text ends no start as it is quoted."""


def test_a_text_that_a_lint_code_quotes_is_known_in_a_log() -> None:
    page = data.LINT_CODES.read_text(encoding="utf-8")
    for code, body in re.findall(r"^### (GS\d+): [^\n]*\n(.*?)(?=^### |\Z)", page, re.MULTILINE | re.DOTALL):
        for quoted in re.findall(r'"([^"]{18,200})"', " ".join(body.split())):
            assert code in QUIET or explain([f"ValueError: {quoted}"]), (code, quoted)


def test_shapes_that_do_not_fit_are_a_patch_where_there_is_one_and_else_another_head() -> None:
    shapes = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8192x10752 and 5376x1024)"
    codes = [explain([f"gemmaspec: patching vllm {vllm} at /vllm", shapes]) for vllm in ("0.26.0", "0.33.0")]
    assert [known and known.code for known in codes] == ["mtp-share-embeddings", "head-of-another-size"]


def test_graphs_that_vllm_lowers_by_itself_are_no_failure() -> None:
    said = "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with X backend (support: AttentionCGSupport.NEVER)"
    assert explain([f"WARNING 11-20 17:50:25 [compilation.py:1439] {said}; setting cudagraph_mode=PIECEWISE"]) is None


def test_an_unknown_speculative_key_is_told_from_a_wrong_value() -> None:
    head = "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig"
    key = ["no_such_key", "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=1]"]
    unknown, wrong = explain([head, *key]), explain([head, "method", "  Input should be 'ngram' or 'mtp'"])
    assert unknown
    assert wrong
    assert (unknown.code, wrong.code) == ("unknown-speculative-key", "speculative-config")
    assert explain([head.replace("Speculative", "Cache"), *key]) is None


def test_every_failure_of_the_table_has_an_example() -> None:
    codes = {known.finding.code for known in table()}
    assert codes == {*SAID, "unknown-speculative-key", "head-of-another-size"}
    assert len(codes) >= 120


def test_the_table_has_known_keys_and_bounded_repetitions_only() -> None:
    keys = {"id", "source", "text", "cause", "fix", "exit", "general", "said", "like"}
    for row in strict_yaml.parse(TABLE.read_text(), file="failures.yaml").data:
        assert {"id", "text", "cause", "fix"} <= set(row) <= keys
        without = re.sub(r"\\.|\[[^]]*\]", "x", row["text"])
        assert not re.search(r"[*+]|,\}", without), row["id"]


REAL = {
    "vllm-0.20.2-multimodal-guard.log": "draft-text-only",
    "vllm-0.20.2-window-sizes.log": "kv-spec-uniform-valueerror",
    "vllm-0.32.0-first-request.log": "draft-text-only",
    "vllm-0.32.0-kv-groups.log": "draft-several-kv-groups",
    "vllm-0.32.0-kv-sharing.log": "kv-sharing-uniform-specs",
    "vllm-0.32.0-offline.log": "model-not-cached",
    "vllm-0.32.0-port.log": "port-in-use",
    "vllm-0.32.0-unknown-flag.log": "unknown-flag",
    "vllm-0.32.0-unknown-key.log": "unknown-speculative-key",
    "vllm-0.32.0-window-sizes.log": "kv-spec-uniform-valueerror",
}


@pytest.mark.parametrize(("log", "code"), REAL.items())
def test_the_root_cause_of_a_real_log_is_found(log: str, code: str) -> None:
    cause = find_cause((LOGS / log).read_text().splitlines())
    assert cause
    assert cause.failure.finding.code == code
    assert "Engine core initialization failed" not in cause.message
    assert not cause.message.lstrip().startswith("raise ")


def test_every_real_log_is_tested() -> None:
    assert {path.name for path in LOGS.glob("*.log")} == {
        *REAL,
        "vllm-0.20.2-ready.log",
        "vllm-0.26.0-gpu-eager-ready.log",
        "vllm-0.26.0-gpu-pair-ready.log",
        "vllm-0.26.0-gpu-target-ready.log",
        "vllm-0.32.0-ready.log",
    }


@pytest.mark.parametrize("log", [path.name for path in LOGS.glob("*-ready.log")])
def test_a_start_that_went_well_shows_no_failure(log: str) -> None:
    assert find_cause((LOGS / log).read_text().splitlines()) is None


def test_the_earliest_of_two_causes_counts() -> None:
    log = [WINDOWS, SAID["gpu-out-of-memory"][0]]
    assert [getattr(explain(part), "code", None) for part in (log, log[::-1])] == [
        "kv-spec-uniform-valueerror",
        "gpu-out-of-memory",
    ]


def test_a_specific_cause_explains_more_than_an_earlier_general_one() -> None:
    known = explain([SAID["not-a-model"][0], WINDOWS])
    assert known
    assert known.code == "kv-spec-uniform-valueerror"


def test_a_line_of_source_in_a_traceback_is_not_the_cause() -> None:
    log = ["Traceback (most recent call last):", "    raise LocalEntryNotFoundError(", "KeyError: 'x'"]
    assert find_cause(log) is None
    assert first(log) == "KeyError: 'x'"


def test_a_refusal_of_pydantics_is_shown_with_the_key() -> None:
    log = (LOGS / "vllm-0.32.0-unknown-key.log").read_text().splitlines()
    cause = find_cause(log)
    assert cause
    assert "for SpeculativeConfig: no_such_key: Unexpected keyword argument" in cause.message
    other = ["x.ValidationError: 1 validation error for VllmConfig", "  Value error, no such thing"]
    assert first(other) == "x.ValidationError: 1 validation error for VllmConfig Value error, no such thing"


def test_of_an_unknown_failure_the_first_exception_is_shown() -> None:
    log = [
        "(Worker pid=6043) WARNING 11-20 18:02:28 [a.py:1] errors like `OSError: [Errno 24] Too many open files`",
        "(Worker pid=6043) ERROR 11-20 17:58:49 [multiproc_executor.py:870] torch.cuda.SomeError: 7 of 9",
        "(EngineCore pid=1) Exception: WorkerProc initialization failed due to an exception in a background "
        "process. See stack trace for root cause.",
        WRAPPER,
    ]
    assert explain(log) is None
    assert first(log) == "torch.cuda.SomeError: 7 of 9"
    assert first([WRAPPER]) is None


def test_every_failure_says_two_sentences_and_has_a_documented_exit_code() -> None:
    for known in (*known_failures(), KILLED):
        found = known.finding
        assert known.exit_code in (4, 6), found.code
        for sentence in (found.message, found.fix):
            assert re.fullmatch(r"(?:[A-Z]|vLLM).+\.", sentence), found.code
            assert len(sentence) < 220, found.code
    assert len({known.finding.code for known in known_failures()}) == len(known_failures())


def test_every_patch_named_is_shipped() -> None:
    shipped = {path.name for path in (ROOT / "patches").iterdir() if path.is_dir()}
    fixes = " ".join(known.finding.fix for known in known_failures())
    named = set(re.findall(r"(?<![-\w])[a-z0-9]+(?:-[a-z0-9]+){2,}\b", fixes))
    assert named >= {"kv-spec-uniform-valueerror", "kv-sharing-uniform-specs", "draft-text-only"}
    assert named <= shipped


@given(st.lists(st.text(), max_size=5))
def test_any_text_can_be_explained(lines: list[str]) -> None:
    explain(lines)
    root_exception(lines)


@pytest.mark.parametrize(
    "unit",
    [
        "Access to model ",
        "Free memory on device ",
        "KeyError: 'a.",
        "Worker proc ",
        "Model architectures [Gemma4",
        "aB.",
        "Insufficient ",
    ],
)
def test_a_hostile_log_takes_little_time(unit: str) -> None:
    log = [unit * 50_000] * 50
    began = time.process_time()
    find_cause(log)
    first(log)
    assert time.process_time() - began < 5
