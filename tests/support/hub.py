"""A fake of the Hugging Face Hub, which cannot be reached from where the tests run.

It answers huggingface_hub as the Hub does, as far as reading models goes: information, file trees, files by redirect
to a storage host that must not see a token, ranges, revisions, gated and private models. On demand it is slow, breaks
off or fails. It counts what it sent.

    with serve() as hub:
        commit = hub.add("some/model", {"config.json": b"{}", "model.safetensors": Zeros(header, size=20 * 2**30)})
        hub.aim(monkeypatch, home)                      # this process's huggingface_hub
        subprocess.run(…, env=hub.environment(home))    # another process's
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

CHUNK = 64 * 1024
LARGE = 10 * 2**20
"""From this size on, and for weights and tokenizer.json, the Hub keeps a file in its large-file storage."""

PAIR = """\
schema: 1
name: {name}
summary: a test
machine: cpu
runtime: {{python: %s}}
target: {{model: some/target}}
draft: {{model: some/draft}}
speculative: {{method: draft_model, num_speculative_tokens: 4}}
serve: {{port: {port}}}
"""
"""A profile of a pair on this Hub; its interpreter is filled in by the test."""


@dataclasses.dataclass(frozen=True)
class Zeros:
    """A file of any size that needs no room: some first bytes, then zeros."""

    first: bytes
    size: int

    def __len__(self) -> int:
        return self.size

    def part(self, start: int, stop: int) -> bytes:
        """Its bytes from start to stop."""
        return self.first[start:stop].ljust(min(stop, self.size) - start, b"\0")


class Large(bytes):
    """A file that the Hub keeps in its large-file storage, however small it is."""


class Damaged(Large):
    """One that arrives as other bytes."""


Body = bytes | Zeros


@dataclasses.dataclass(frozen=True)
class File:
    """One file of one commit."""

    path: str
    body: Body

    @property
    def size(self) -> int:
        return len(self.body)

    @property
    def large(self) -> bool:
        return (
            isinstance(self.body, Large) or self.size >= LARGE or self.path.endswith((".safetensors", "tokenizer.json"))
        )

    @functools.cached_property
    def sha256(self) -> str:
        """Of the content; of a Zeros, only of what makes it different from others."""
        first = self.body if isinstance(self.body, bytes) else self.body.first + str(self.body.size).encode()
        return hashlib.sha256(first).hexdigest()

    @functools.cached_property
    def blob(self) -> str:
        """Git's name for it: of the content, or of the pointer to large-file storage."""
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n".encode()
        content = pointer if self.large or not isinstance(self.body, bytes) else self.body
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.blob

    def part(self, start: int, stop: int) -> bytes:
        """Its bytes from start to stop."""
        if isinstance(self.body, Damaged):
            return (b"x" * self.size)[start:stop]
        return self.body[start:stop] if isinstance(self.body, bytes) else self.body.part(start, stop)


@dataclasses.dataclass
class Repo:
    """One model: commits, branches and tags, and who may read it."""

    commits: dict[str, dict[str, File]] = dataclasses.field(default_factory=dict)
    refs: dict[str, str] = dataclasses.field(default_factory=dict)
    gated: Literal["auto", "manual", False] = False
    private: bool = False
    readers: frozenset[str] = frozenset()
    """Tokens that were let in."""
    card: dict[str, Any] = dataclasses.field(default_factory=dict)

    def commit(self, revision: str) -> str | None:
        """The commit of a branch, a tag or a commit hash."""
        return self.refs.get(revision) or (revision if revision in self.commits else None)


@dataclasses.dataclass
class Fault:
    """What goes wrong with requests for a path, `times` times."""

    pattern: str
    times: int = 1
    status: int | None = None
    break_after: int | None = None
    """Bytes of the body after which the connection is cut."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One request, as it was answered."""

    method: str
    path: str
    status: int
    authorized: bool
    """Whether it carried a token."""
    range: str | None


class Hub(ThreadingHTTPServer):
    """The fake; its attributes are its contents and its moods."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.storage = f"http://localhost:{self.server_port}"
        """Where large files are: another host name, so that a client keeps its token to itself."""
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.bytes_per_second: float | None = None
        self.sent = 0
        """Bytes written to all connections, headers included."""
        self.requests: list[Request] = []
        self.lock = threading.Lock()
        self.listed: Callable[[dict[str, Any]], dict[str, Any]] = lambda file: file
        """What the information of a model says of a file, made from what is so."""

    def add(self, name: str, files: Mapping[str, Body], *, ref: str = "main", **about: Any) -> str:
        """Commit files to a model (or to datasets/OWNER/NAME), made when it is new; point a branch or tag there."""
        repo = self.repos.setdefault(name, Repo())
        for key, value in about.items():
            setattr(repo, key, value)
        content = {path: File(path, body) for path, body in sorted(files.items())}
        seed = json.dumps([name, len(repo.commits), [(path, file.etag) for path, file in content.items()]])
        commit = hashlib.sha1(seed.encode()).hexdigest()
        repo.commits[commit] = content
        repo.refs[ref] = commit
        return commit

    def add_folder(self, name: str, folder: Path, **about: Any) -> str:
        """Commit a folder as it is."""
        files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        return self.add(name, files, **about)

    def stored(self, sha256: str) -> File | None:
        """A large file by its hash."""
        commits = (files for repo in self.repos.values() for files in repo.commits.values())
        return next((file for files in commits for file in files.values() if file.etag == sha256), None)

    def fault(self, request: str) -> Fault | None:
        """The fault that meets a request, used up once."""
        with self.lock:
            for fault in self.faults:
                if fault.times and re.search(fault.pattern, request):
                    fault.times -= 1
                    return fault
        return None

    def forget(self) -> None:
        """Count from here."""
        self.sent = 0
        self.requests.clear()

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """The environment of another process that shall use this Hub and keep its cache in `home`."""
        names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN")
        own = {name: value for name, value in os.environ.items() if name not in names}
        return {**own, "HF_ENDPOINT": self.url, "HF_HOME": str(home), **more}

    def aim(self, patch: pytest.MonkeyPatch, home: Path, *, token: str | None = None) -> None:
        """Make this process's huggingface_hub use this Hub, with its cache in `home`."""
        hub_settings(
            patch,
            ENDPOINT=self.url,
            HUGGINGFACE_CO_URL_TEMPLATE=self.url + "/{repo_id}/resolve/{revision}/{filename}",
            HF_HOME=str(home),
            HF_HUB_CACHE=str(home / "hub"),
            HF_TOKEN_PATH=str(home / "token"),
            HF_HUB_OFFLINE=False,
        )
        patch.setenv("HF_TOKEN", token) if token else patch.delenv("HF_TOKEN", raising=False)


def hub_settings(patch: pytest.MonkeyPatch, **settings: str | bool) -> None:
    """Change what this process's huggingface_hub has read from its environment when it was imported."""
    from huggingface_hub import constants

    for name, value in settings.items():
        patch.setattr(constants, name, value)


def offline(patch: pytest.MonkeyPatch, home: Path) -> None:
    """Let this process ask no Hub, with its cache in `home`."""
    hub_settings(patch, HF_HUB_OFFLINE=True, HF_HUB_CACHE=str(home / "hub"))


class Handler(BaseHTTPRequestHandler):
    """One connection to the fake."""

    server: Hub
    protocol_version = "HTTP/1.1"
    timeout = 30
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        fault = self.server.fault(f"{self.command} {path}")
        if fault and fault.status:
            self._error(fault.status, None, "as the test wants it")
        elif path.startswith("/storage/"):
            self._storage(path.removeprefix("/storage/"), fault)
        elif path == "/api/whoami-v2":
            self._whoami()
        elif match := re.fullmatch(r"/api/(?:models/|(?=datasets/))((?:datasets/)?[^/]+/[^/]+)(?:/(.*))?", path):
            self._api(match[1], match[2] or "", parse_qs(parts.query))
        elif match := re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)/resolve/(.*)", path):
            self._resolve(match[1], unquote(parts.path.split("/resolve/")[1]), parts.path.split("/resolve/")[1], fault)
        else:
            self._error(404, None, "no such page")

    do_HEAD = do_GET  # noqa: N815 - http.server's name for it

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/paths-info/([^/]+)", unquote(urlsplit(self.path).path))
        if not match:
            self._error(404, None, "no such page")
            return
        found = self._commit(match[1], match[2])
        if found:
            text = body.decode()
            wanted = json.loads(text)["paths"] if text.startswith("{") else parse_qs(text).get("paths", [])
            self._json([_entry(file) for path, file in found[1].items() if path in wanted])

    def _whoami(self) -> None:
        known = {token for repo in self.server.repos.values() for token in repo.readers}
        if self._token() in known:
            self._json({"type": "user", "name": "tester", "orgs": [], "auth": {"type": "access_token"}})
        else:
            self._error(401, None, "Invalid username or password.")

    def _api(self, name: str, rest: str, query: dict[str, list[str]]) -> None:
        repo = self._seen(name)
        if not repo:
            return
        if rest == "auth-check":
            if self._let_in(name, repo):
                self._json({"ok": True})
        elif rest == "refs":
            branches = [{"name": ref, "ref": f"refs/heads/{ref}", "targetCommit": at} for ref, at in repo.refs.items()]
            self._json({"branches": branches, "tags": [], "converts": []})
        elif rest.startswith("tree/"):
            self._tree(name, rest.removeprefix("tree/"), recursive="true" in str(query.get("recursive")).lower())
        elif not rest or rest.startswith("revision/"):
            self._info(name, repo, rest.removeprefix("revision/") or "main", blobs="blobs" in query)
        else:
            self._error(404, None, "no such page")

    def _info(self, name: str, repo: Repo, revision: str, *, blobs: bool) -> None:
        found = self._commit(name, revision)
        if not found:
            return
        commit, files = found
        about = {"id": name, "modelId": name, "author": name.split("/")[0], "sha": commit, "private": repo.private}
        more = {"gated": repo.gated, "disabled": False, "tags": repo.card.get("tags", []), "cardData": repo.card}
        self._json(
            {**about, **more, "siblings": [self.server.listed(_sibling(file, blobs=blobs)) for file in files.values()]}
        )

    def _tree(self, name: str, rest: str, *, recursive: bool) -> None:
        revision, _, folder = rest.partition("/")
        found = self._commit(name, revision)
        if not found:
            return
        inside = {path: file for path, file in found[1].items() if not folder or path.startswith(f"{folder}/")}
        depth = folder.count("/") + 1 if folder else 0
        folders = {"/".join(path.split("/")[: depth + 1]) for path in inside if path.count("/") > depth}
        entries = [_entry(file) for path, file in inside.items() if recursive or path.count("/") == depth]
        kind = {"type": "directory", "oid": "0" * 40, "size": 0}
        self._json([*({**kind, "path": path} for path in sorted(folders)), *entries])

    def _resolve(self, name: str, rest: str, quoted: str, fault: Fault | None) -> None:
        repo = self._seen(name)
        if not repo or not self._let_in(name, repo):
            return
        revision, path = unquote(quoted.partition("/")[0]), rest.partition("/")[2]
        if "%2F" in quoted.partition("/")[0]:  # a revision with a slash, such as refs/pr/1
            path = unquote(quoted.partition("/")[2])
        found = self._commit(name, revision)
        if not found:
            return
        commit, files = found
        if path not in files:
            self._error(404, "EntryNotFound", "Entry not found", **{"X-Repo-Commit": commit})
            return
        file = files[path]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{file.etag}"', "Accept-Ranges": "bytes"}
        if not file.large:
            self._file(file, headers, fault)
            return
        linked = {"X-Linked-Size": str(file.size), "X-Linked-Etag": f'"{file.sha256}"'}
        self._reply(302, b"", **headers, **linked, Location=f"{self.server.storage}/storage/{file.sha256}")

    def _storage(self, sha256: str, fault: Fault | None) -> None:
        file = self.server.stored(sha256)
        if file is None:
            self._error(403, None, "no such object")
        else:
            self._file(file, {"ETag": f'"{sha256}"', "Accept-Ranges": "bytes"}, fault)

    def _file(self, file: File, headers: dict[str, str], fault: Fault | None) -> None:
        wanted = _range(self.headers.get("Range"), file.size)
        if wanted is None:
            self._error(416, None, "no such range", **{"Content-Range": f"bytes */{file.size}"})
            return
        start, stop = wanted
        partial = "Range" in self.headers
        if partial:
            headers = {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{file.size}"}
        self._head(206 if partial else 200, stop - start, headers)
        if self.command == "HEAD":
            return
        end = stop if fault is None or fault.break_after is None else min(stop, start + fault.break_after)
        with contextlib.suppress(ConnectionError):
            for at in range(start, end, CHUNK):
                self._write(file.part(at, min(at + CHUNK, end)))
        if end < stop:
            self.close_connection = True

    def _seen(self, name: str) -> Repo | None:
        """The model, if this client may know that it exists."""
        repo = self.server.repos.get(name)
        if repo and (not repo.private or self._token() in repo.readers):
            return repo
        self._error(404 if self._token() else 401, "RepoNotFound", "Repository not found")
        return None

    def _let_in(self, name: str, repo: Repo) -> bool:
        """Whether this client may read the files of a model that it can see."""
        if not repo.gated or self._token() in repo.readers:
            return True
        words = f"Access to model {name} is restricted and you are not in the authorized list."
        self._error(403 if self._token() else 401, "GatedRepo", words)
        return False

    def _commit(self, name: str, revision: str) -> tuple[str, dict[str, File]] | None:
        repo = self._seen(name)
        if not repo:
            return None
        commit = repo.commit(revision)
        if commit is None:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return commit, repo.commits[commit]

    def _token(self) -> str | None:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None

    def _json(self, content: Any) -> None:
        self._reply(200, json.dumps(content).encode(), **{"Content-Type": "application/json"})

    def _error(self, status: int, code: str | None, message: str, **headers: str) -> None:
        more = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
        self._reply(status, json.dumps({"error": message}).encode(), **more, **headers)

    def _reply(self, status: int, body: bytes, **headers: str) -> None:
        self._head(status, len(body), headers)
        if self.command != "HEAD":
            self._write(body)

    def _head(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        authorized = self._token() is not None
        request = Request(self.command, unquote(self.path), status, authorized, self.headers.get("Range"))
        with self.server.lock:
            self.server.requests.append(request)
        lines = [f"HTTP/1.1 {status} {self.responses.get(status, ('',))[0]}", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._write("\r\n".join([*lines, "", ""]).encode())

    def _write(self, content: bytes) -> None:
        if self.server.bytes_per_second:
            time.sleep(len(content) / self.server.bytes_per_second)
        with contextlib.suppress(ConnectionError):
            self.wfile.write(content)
            with self.server.lock:
                self.server.sent += len(content)

    def log_message(self, *_: object) -> None:
        pass


def _range(text: str | None, size: int) -> tuple[int, int] | None:
    """Start and stop of a Range header; None when there is nothing there."""
    if not text:
        return 0, size
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text)
    if not match or not any(match.groups()):
        return 0, size
    if not match[1]:
        return max(0, size - int(match[2])), size
    start, stop = int(match[1]), min(size, int(match[2]) + 1) if match[2] else size
    return (start, stop) if start < stop else None


def _entry(file: File) -> dict[str, Any]:
    """A file as the tree has it."""
    entry = {"type": "file", "oid": file.blob, "size": file.size, "path": file.path}
    large = {"lfs": {"oid": file.sha256, "size": file.size, "pointerSize": 134}}
    return {**entry, **large} if file.large else entry


def _sibling(file: File, *, blobs: bool) -> dict[str, Any]:
    """A file as a model's information has it."""
    if not blobs:
        return {"rfilename": file.path}
    sibling: dict[str, Any] = {"rfilename": file.path, "size": file.size, "blobId": file.blob}
    large = {"lfs": {"sha256": file.sha256, "size": file.size, "pointerSize": 134}}
    return {**sibling, **large} if file.large else sibling


@contextlib.contextmanager
def serve() -> Iterator[Hub]:
    """A running fake of the Hub."""
    server = Hub()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
