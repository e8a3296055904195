"""Ask the vLLM of this container something real; Compose's health check and the probes of a pod run it.

    python3 probe.py drafted --port N --model NAME --state FILE --deadline S [--host H] [--speculates]
    python3 probe.py answers --port N --model NAME --state FILE --deadline S [--host H]

`drafted` passes when one chat completion came back, and was drafted if the server speculates: the proof that a start
is over. With patches, every process has to have attested its patched functions too. `answers` passes while the engine
moves: its counters have changed since the last look, or it gave an answer within the last minute, or it gives one now;
the first look always asks. Where the counters come slowly, the server is asked for a token
too. /health says 200 for a server whose engine hangs, and for one that dies of its first request, so neither relies on
it. Standard library of Python 3.10 only: it is copied into containers.

Exit codes: 0 passed · 1 not · 2 usage.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

QUESTION = "Count from one to twenty, in words."
MAX_TOKENS = 48
METRICS_PART = 0.3  # of what is left of the deadline: so long counters are waited for before a token is asked for
FRESH_S = 60.0  # an engine that answered so many seconds ago is not asked again
MAX_BODY = 8 * 1024 * 1024  # bytes
ATTESTED = "attested.json"  # beside the state: the verdict on what the processes attest (attest_sum.py)
ATTEST = "attest"  # beside the state: the folder from which they do; without it nothing is patched
SETTLE_TRIES = 20
SETTLE_S = 0.1  # vLLM counts a step shortly after it has answered
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
# The engine's process sends these with each step (v1/metrics/loggers.py, every release): while it hangs, they stand.
MOVES = (
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running",
)


class NotYet(Exception):
    """The server does not do what it was asked for; the text says what came instead."""


class Slow(NotYet):
    """The server was still sending when the time for it was over."""


class Asked:
    """The server of this container or machine, asked until a deadline."""

    def __init__(self, host: str, port: int, deadline_s: float) -> None:
        self.host = host
        self.port = port
        self.ends = time.monotonic() + deadline_s

    def get(self, path: str, part: float = 1.0) -> str:
        """Return the text at a path. Raises Slow if it takes more than that part of what is left, else NotYet for any
        answer but 200.
        """
        return self._exchange("GET", path, None, part)

    def complete(self, model: str, max_tokens: int) -> None:
        """Ask one question. Raises NotYet unless an answer with tokens comes back."""
        message = {"role": "user", "content": QUESTION}
        body = {"model": model, "messages": [message], "temperature": 0, "max_tokens": max_tokens}
        found = json.loads(self._exchange("POST", "/v1/chat/completions", json.dumps(body)))
        if not (found["choices"] and found["usage"]["completion_tokens"] > 0):
            raise NotYet("the answer has no token in it")

    def _exchange(self, method: str, path: str, body: str | None, part: float = 1.0) -> str:
        if body:
            headers = {"Content-Type": "application/json"}
        else:
            headers = {}
        if key := os.environ.get("VLLM_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        left = (self.ends - time.monotonic()) * part
        if left <= 0:
            raise NotYet("the deadline is over")
        connection = http.client.HTTPConnection(self.host, self.port, timeout=left)
        try:
            with within(left, path):
                connection.request(method, path, body=body, headers=headers)
                reply = connection.getresponse()
                text = reply.read(MAX_BODY).decode("utf-8", "replace")
        finally:
            connection.close()
        if reply.status != 200:
            raise NotYet(f"{path} answers {reply.status}")
        return text


@contextmanager
def within(seconds: float, path: str) -> Iterator[None]:
    """Raise Slow in the block when its time is over. A socket's own limit begins anew with each byte that comes."""

    def over(*_: object) -> None:
        raise Slow(f"{path} was not there within {seconds:.1f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except TimeoutError:
        over()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def drafted(asked: Asked, model: str, *, speculates: bool) -> str:
    """Ask a whole question and return the engine's counters after it; NotYet unless it was drafted, if it has to be."""
    before = total(asked.get("/metrics"), DRAFTED)
    asked.complete(model, MAX_TOKENS)
    for _ in range(SETTLE_TRIES):
        page = asked.get("/metrics")
        if not speculates or total(page, DRAFTED) > before:
            return moves(page)
        time.sleep(SETTLE_S)
    raise NotYet("it answers but does not draft")


def answers(asked: Asked, model: str, state: dict[str, Any]) -> str | None:
    """Return the engine's counters when it has moved, None when there is no need to look; NotYet when it does not.

    Without a state nothing is known to compare with, so the server has to answer.
    """
    try:
        page = moves(asked.get("/metrics", METRICS_PART))
    except Slow:
        asked.complete(model, 1)
        return str(state.get("moves", ""))
    if state.get("moves") and page != state["moves"]:
        return page
    if 0 <= time.time() - float(state.get("at", 0)) < FRESH_S:
        return None
    asked.complete(model, 1)
    return moves(asked.get("/metrics"))


def attested(folder: Path) -> None:
    """Raise NotYet unless all processes run the patched functions, by the verdict in the folder."""
    if not (folder / ATTEST / "targets.json").exists():
        return  # nothing is patched
    try:
        with (folder / ATTESTED).open("rb") as file:
            found = json.loads(file.read(MAX_BODY))
        state, text = found["state"], str(found["text"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise NotYet("not attested: no process has said anything of its patched functions") from None
    if state != "attested":
        raise NotYet(text)


def total(page: str, name: str) -> float:
    """Return the sum of a counter's samples on a /metrics page."""
    return sum(float(line.rpartition(" ")[2]) for line in lines_of(page, name))


def moves(page: str) -> str:
    """Return what of a /metrics page changes with each step of the engine."""
    return "\n".join(lines_of(page, *MOVES))


def lines_of(page: str, *names: str) -> list[str]:
    """Return the samples of these metrics; another program's metric may begin with the same words."""
    begins = tuple(f"{name}{end}" for name in names for end in "{ ")
    return [line for line in page.splitlines() if line.startswith(begins)]


def read_state(path: Path) -> dict[str, Any]:
    """Return what the last probe saw; nothing when that cannot be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if isinstance(found, dict) and isinstance(found.get("at"), (int, float)):
        return found
    return {}


def write_state(path: Path, seen: str) -> None:
    """Record what this probe saw, atomically, because two probes may write at once."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps({"at": time.time(), "moves": seen}), encoding="utf-8")
    fresh.replace(path)


def main(argv: Sequence[str]) -> int:
    """Run one probe; say in one line what is wrong."""
    parser = argparse.ArgumentParser(prog="probe.py", allow_abbrev=False)
    parser.add_argument("proof", choices=("drafted", "answers"))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--deadline", type=float, required=True)
    parser.add_argument("--speculates", action="store_true")
    options = parser.parse_args(argv)
    asked = Asked(options.host, options.port, options.deadline)
    try:
        attested(options.state.parent)
        if options.proof == "drafted":
            seen: str | None = drafted(asked, options.model, speculates=options.speculates)
        else:
            seen = answers(asked, options.model, read_state(options.state))
        if seen is not None:
            write_state(options.state, seen)
    except NotYet as error:
        print(f"gemmaspec: {error}")
        return 1
    except (OSError, http.client.HTTPException) as error:
        print(f"gemmaspec: the server does not answer: {error}")
        return 1
    except (ValueError, KeyError, TypeError, RecursionError):
        print("gemmaspec: the server's answer is not one of vLLM")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
