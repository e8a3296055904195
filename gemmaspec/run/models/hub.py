"""A checkpoint on the Hugging Face Hub, read with range requests and without writing to the cache.

huggingface_hub handles the endpoint, the token, the proxies and which host may get the token.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeVar

from gemmaspec.core.checkpoint.card import hub_ids
from gemmaspec.core.errors import EnvironmentMissing, GemmaspecError
from gemmaspec.core.reasons import reason
from gemmaspec.run.models.folder import MOST_FILES

ATTEMPTS: Final = 3
"""Number of attempts per piece if the connection breaks off."""
SECONDS: Final = 10.0
"""Timeout for the Hub in seconds."""

PAUSES: Final = (0.5, 1.0)
"""Seconds before information is asked for again that a busy Hub, or a connection that broke off, did not give."""
_BROKE_OFF: Final = frozenset({"ReadError", "WriteError", "RemoteProtocolError"})
"""Of httpx. A Hub that cannot be connected to, or is silent, is not asked again: many machines have no network."""

Kind = Literal["model", "data set"]

T = TypeVar("T")
_DISK: Final = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS}


class Unreachable(EnvironmentMissing):
    """The Hub did not answer; the cache may suffice."""


class HubFiles:
    """One model at one commit on the Hub, or one data set."""

    source: Literal["folder", "cache", "hub"] = "hub"

    def __init__(self, model: str, info: Any, *, kind: Kind = "model") -> None:
        self.model, self._kind = model, kind
        self.revision: str | None = info.sha
        siblings = [sibling for sibling in (info.siblings or [])[:MOST_FILES] if "/" not in sibling.rfilename]
        self.sizes: Mapping[str, int] = {sibling.rfilename: sibling.size or 0 for sibling in siblings}
        self._large = {sibling.rfilename: sibling.lfs.sha256 for sibling in siblings if sibling.lfs}
        self._bases = hub_ids((info.card_data or {}).get("base_model"))
        self.licence = _words((info.card_data or {}).get("license"))
        """From the model card; "" where it names none."""
        self._lock = threading.Lock()
        self.bytes_read = 0

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return a part of a file, with retries if the connection breaks off."""
        stop = min(stop, self.sizes[name])
        with refusals(self.model, self.revision, kind=self._kind):
            piece = self._asked(name, start, stop)
        if len(piece) < stop - start:
            raise Unreachable(f"the connection to the Hub broke off in {name} of {self.model}", hint="try again")
        return piece

    def sha256(self, name: str) -> str | None:
        """Return the sha256 in the Hub's listing, for files in large-file storage."""
        return self._large.get(name)

    def base_models(self) -> tuple[str, ...]:
        """Return `base_model` from the model card, as the Hub parsed it."""
        return self._bases

    def _asked(self, name: str, start: int, stop: int) -> bytes:
        for attempt in range(ATTEMPTS):
            try:
                return self._range(name, start, stop)
            except Exception as error:
                if attempt == ATTEMPTS - 1 or hasattr(error, "response"):
                    raise
        raise AssertionError  # the last attempt returns or raises

    def _range(self, name: str, start: int, stop: int) -> bytes:
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.utils import (  # type: ignore[attr-defined] # documented, and loaded on demand
            build_hf_headers,
            hf_raise_for_status,
            http_stream_backoff,
        )

        if start >= stop:
            return b""
        if self._kind == "data set":
            repo_type = "dataset"
        else:
            repo_type = None
        url = hf_hub_url(self.model, name, repo_type=repo_type, revision=self.revision, endpoint=constants.ENDPOINT)
        headers = {**build_hf_headers(), "Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        piece = bytearray()
        with http_stream_backoff(
            "GET", url, headers=headers, timeout=SECONDS, max_retries=2, follow_redirects=True
        ) as response:
            hf_raise_for_status(response)
            if start and response.status_code != 206:
                raise Unreachable(f"{constants.ENDPOINT} does not support range requests for {name} of {self.model}")
            for chunk in response.iter_bytes():
                piece += chunk
                self._count(len(chunk))
                if len(piece) >= stop - start:
                    break
        return bytes(piece[: stop - start])

    def _count(self, number: int) -> None:
        with self._lock:
            self.bytes_read += number


def on_hub(model: str, revision: str | None) -> HubFiles:
    """Return the model's current state on the Hub. Raise EnvironmentMissing, or Unreachable without an answer."""
    from huggingface_hub import HfApi

    with refusals(model, revision):
        return HubFiles(
            model,
            asked_again(lambda: HfApi().model_info(model, revision=revision, files_metadata=True, timeout=SECONDS)),
        )


def dataset_on_hub(name: str, revision: str) -> HubFiles:
    """Return a data set as it is on the Hub. Raise EnvironmentMissing, or Unreachable without an answer."""
    from huggingface_hub import HfApi

    with refusals(name, revision, kind="data set"):
        info = asked_again(lambda: HfApi().dataset_info(name, revision=revision, files_metadata=True, timeout=SECONDS))
        return HubFiles(name, info, kind="data set")


def asked_again(ask: Callable[[], T]) -> T:
    """Return what the Hub says, asked again after PAUSES while it is busy or the connection breaks off.

    Raise what `ask` raises.
    """
    for pause in PAUSES:
        try:
            return ask()
        except Exception as error:
            if not _passes(error):
                raise
        time.sleep(pause)
    return ask()


def _passes(error: Exception) -> bool:
    """Return whether an error of the Hub's client is one that may be over in a second."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status in (429, 500, 502, 503, 504)
    return type(error).__name__ in _BROKE_OFF


def page(model: str, *, kind: Kind = "model") -> str:
    """Return the address of a model's or a data set's page."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{'datasets/' if kind == 'data set' else ''}{model}"


def _why(error: Exception) -> str:
    """Return why the Hub gave no answer that can be read."""
    if isinstance(error, KeyError | TypeError | AttributeError) or type(error).__name__ == "JSONDecodeError":
        return "the answer is not one of a Hub, but perhaps of a proxy or a login page"
    return reason(error)


def _words(value: object) -> str:
    """Return a card's own short text, without what a terminal would interpret."""
    text = value if isinstance(value, str) else ""
    return "".join(char for char in text if char.isprintable())[:60]


@contextmanager
def refusals(model: str, revision: str | None, *, kind: Kind = "model") -> Iterator[None]:
    """Turn errors of the Hub's client into one sentence without the token and without a URL."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        yield
    except GemmaspecError:
        raise
    except GatedRepoError:
        raise EnvironmentMissing(
            f"{model} is gated, and this token has no access yet",
            hint=f"accept the terms at {page(model, kind=kind)}, then: hf auth login, or export HF_TOKEN=…",
        ) from None
    except RevisionNotFoundError:
        raise EnvironmentMissing(f"{model} has no revision {revision}") from None
    except RepositoryNotFoundError:
        raise EnvironmentMissing(
            f"the {kind} {model} does not exist on the Hub, or it is private and this token may not read it",
            hint=f"check the spelling; for a private {kind}: export HF_TOKEN=…; for a folder: ./{model}",
        ) from None
    except Exception as error:  # the Hub's client has its own HTTP library, and changed it before
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise EnvironmentMissing(
                f"the Hub rejects this token for {model} ({status}): it is wrong, expired, or without read access",
                hint="hf auth login    # or export HF_TOKEN=…",
            ) from None
        if isinstance(error, OSError) and error.errno in _DISK:
            raise EnvironmentMissing(f"cannot write to the cache: {error.strerror}", hint="df -h") from None
        raise Unreachable(
            f"cannot query the Hub about {model}: {_why(error)}",
            hint=f"curl -I {page(model, kind=kind)}",
        ) from None
