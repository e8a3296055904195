"""Requests to a server or a router, and its chat completions: each bounded in time and size, whatever it sends."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from gemmaspec.core.errors import StartFailed, TimedOut
from gemmaspec.run.engine.answer import MAX_BYTES, ChatAnswer, Collector, Fault, Malformed, StreamError, error_text
from gemmaspec.run.exchange import Arriving, NotConnected, TooLong, exchanged, opened

MAX_BODY: Final = 8 * 1024 * 1024
"""Maximum bytes to read of an answer; a /metrics page of vLLM has about 100 kB."""

CHAT: Final = "/v1/chat/completions"

JSON: Final = {"Content-Type": "application/json"}
"""The header of a request whose body is given as bytes."""


class NoAnswer(StartFailed):
    """The connection broke or the server reported a failure, so that it may be dying."""


@dataclass(frozen=True)
class Reply:
    """A status and a complete body."""

    status: int
    body: bytes

    def json(self) -> Any:
        """Return the body as JSON. Raises StartFailed if it is invalid."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise StartFailed("the server's answer is not JSON") from None


def exchange(
    base_url: str,
    path: str,
    *,
    body: dict[str, Any] | None = None,
    timeout_s: float,
    api_key: str | None = None,
) -> Reply:
    """Send a request, POST if there is a body and else GET, and return the complete reply.

    Raises NoAnswer if the connection fails, TimedOut after `timeout_s` seconds in all, StartFailed above MAX_BODY.
    """
    method, content, headers = "GET", None, authorized(api_key)
    if body is not None:
        method, headers = "POST", JSON | headers
        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        status, answer = exchanged(
            base_url, path, method=method, body=content, headers=headers, timeout_s=timeout_s, most=MAX_BODY
        )
        return Reply(status, answer)
    except TooLong:
        raise StartFailed(f"{path} answers with more than {MAX_BODY} bytes") from None
    except TimeoutError:
        raise TimedOut(f"{path} did not answer within {timeout_s:.0f} s") from None
    except NotConnected:
        raise NoAnswer(f"cannot connect to {base_url}{path}") from None
    except (OSError, http.client.RemoteDisconnected, http.client.IncompleteRead):
        raise NoAnswer(f"the server closed the connection during {path}") from None
    except (http.client.HTTPException, ValueError):
        raise NoAnswer(f"the answer of {path} is invalid") from None


def authorized(api_key: str | None) -> dict[str, str]:
    """Return the header that carries an API key, if there is one."""
    if api_key:
        return {"Authorization": f"Bearer {api_key}"}
    return {}


@dataclass
class ChatClient:
    """The client of one server. Each request has its own connection, and several threads may share a client."""

    base_url: str
    api_key: str | None = None
    _sockets: set[socket.socket] = field(default_factory=set)

    @contextlib.contextmanager
    def sent(self, body: bytes, *, timeout_s: float) -> Iterator[Arriving]:
        """Send a request and yield its answer while it arrives. Raises what `opened` raises."""
        mine: list[socket.socket] = []

        def hold(sock: socket.socket) -> None:
            mine.append(sock)
            self._sockets.add(sock)

        headers = {**JSON, "Accept-Encoding": "identity", **authorized(self.api_key)}
        try:
            with opened(
                self.base_url, CHAT, method="POST", body=body, headers=headers, timeout_s=timeout_s, on_open=hold
            ) as arriving:
                yield arriving
        finally:
            self._sockets.difference_update(mine)

    def answer(self, body: bytes, *, timeout_s: float, streams: bool = False) -> ChatAnswer:
        """Return the answer to one request, or what had come of it and the fault in which it ended."""
        collector = Collector()
        try:
            with self.sent(body, timeout_s=timeout_s) as arriving:
                return _collected(arriving, collector, streams=streams)
        except TimeoutError:
            return collector.answer(fault=Fault.ENDLESS, said=f"after {timeout_s:.0f} s")
        except Malformed as error:
            return collector.answer(fault=Fault.MALFORMED, said=str(error))
        except StreamError as error:
            return collector.answer(fault=Fault.FAILED, said=str(error))
        except NotConnected:
            return ChatAnswer(fault=Fault.UNREACHABLE)
        except (OSError, http.client.HTTPException, ValueError):
            return collector.answer(fault=Fault.BROKEN_OFF)

    def abort(self) -> None:
        """End the requests in flight, from any thread."""
        for sock in list(self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _collected(arriving: Arriving, collector: Collector, *, streams: bool) -> ChatAnswer:
    whole, total, status = bytearray(), 0, arriving.status
    for part in arriving.parts():
        total += len(part)
        if total > MAX_BYTES:
            return collector.answer(fault=Fault.HUGE, status=status)
        if streams and status == 200:
            collector.feed(part)
        else:
            whole += part
    if status != 200:
        refused = 400 <= status < 500
        return ChatAnswer(
            fault=Fault.REFUSED if refused else Fault.FAILED, status=status, said=error_text(bytes(whole))
        )
    if not streams:
        collector.whole(bytes(whole))
    return collector.answer(status=status, fault=None if collector.ended else Fault.BROKEN_OFF)
