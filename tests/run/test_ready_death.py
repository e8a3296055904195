"""Why a server that had answered has ended, from logs as vLLM 0.32.0 wrote them."""

from __future__ import annotations

import pytest

from gemmaspec.run.ready.death import death, failed

STARTED = [
    "(EngineCore pid=9) ERROR 11-23 06:19:00 [core.py:1] ValueError: an error that the start got over",
    "INFO:     Application startup complete.",
    'INFO:     127.0.0.1:55342 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
]
CORE = (
    "(APIServer pid=1) WARNING 11-23 06:21:50 [core_client.py:817] [shutdown] MPClient: engine core exited unexpectedly"
)
DEAD = (
    "(APIServer pid=1) ERROR 11-23 06:21:50 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
    "encountered an issue. See stack trace (above) for the root cause."
)
ENDED = ["INFO:     Shutting down", "INFO:     Finished server process [1]"]
LEAK = ["resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked shared_memory objects"]


@pytest.mark.parametrize(
    ("said", "exit_code", "why"),
    [
        ([CORE, DEAD, *ENDED, *LEAK], None, "its engine core ended without an error"),
        ([DEAD, *ENDED], None, "its engine core ended without an error"),
        (
            [
                "(EngineCore pid=9) ERROR 11-23 06:21:49 [core.py:1] EngineCore encountered a fatal error.",
                "(EngineCore pid=9) ERROR 11-23 06:21:49 [core.py:1] IndexError: the drafts have no end",
                CORE, DEAD, *ENDED,
            ], None, "IndexError: the drafts have no end",
        ),
        (["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", CORE, DEAD], None, "CUDA out of memory"),
        (ENDED, None, "it was told to stop"),
        ([], 137, "it was killed (SIGKILL): by somebody, or by the kernel"),
        ([], None, "its log names no error"),
    ],
)  # fmt: skip
def test_the_reason_is_in_the_middle_and_what_the_start_got_over_is_none(
    said: list[str], exit_code: int | None, why: str
) -> None:
    found = death([*STARTED, *said], exit_code=exit_code)
    assert why in found.why
    assert "got over" not in found.why


def test_a_log_is_hostile_and_its_secrets_stay_there() -> None:
    found = death([*STARTED, "RuntimeError: \x1b[31mtoken=hf_abcdefghijkl " + "x" * 9999])
    assert "hf_abcdefghijkl" not in found.why
    assert found.why.isprintable()
    assert len(found.why) <= 300


def test_a_launcher_that_refused_is_the_cause_of_a_failed_start() -> None:
    assert (
        failed(["gemmaspec: patch x: conflict", "gemmaspec: x does not fit vllm 0.9"]).why == "x does not fit vllm 0.9"
    )
    assert failed([]).why == ""
