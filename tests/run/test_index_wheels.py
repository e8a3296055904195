from __future__ import annotations

import functools
import hashlib
import http.server
import os
import platform
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.run.index import wheels


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Sets pip's environment variables, without this machine's own settings and with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX", "CERT"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    monkeypatch.setenv("PIP_RETRIES", "0")  # an address that never answers is asked once

    def configure(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(f"PIP_{name}", value)
        forget()

    forget()
    yield configure
    forget()


@pytest.fixture
def alone(pip: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets them where there is no pip that would take half a second to name them."""
    monkeypatch.setattr(wheels.sys, "executable", shutil.which("false"))
    monkeypatch.setenv("PATH", "")
    return pip


def forget() -> None:
    wheels.pip_settings.cache_clear()
    wheels.answers.clear()


def make_wheel(folder: Path, name: str = "toy-1.0-py3-none-any.whl", text: str = "x = 1\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("toy/__init__.py", text)
        archive.writestr("toy/data.bin", b"\x00\xff")
    return folder / name


def make_index(root: Path, wheel: Path) -> str:
    """A simple index of one project on disk, with the wheel's sha256; its address."""
    page = root / "simple" / "toy" / "index.html"
    page.parent.mkdir(parents=True)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    page.write_text(f'<a href="../../{wheel.relative_to(root)}#sha256={sha256}">{wheel.name}</a>')
    return (root / "simple").as_uri()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A web server over tmp_path that does not know range requests; its address."""
    handler = functools.partial(QuietHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_request(self, *args: object) -> None:
        """Keeps the requests out of the test's output."""


def test_without_settings_the_index_is_pips_own(pip: Callable[..., None]) -> None:
    assert wheels.simple_index_urls() == [wheels.PYPI_SIMPLE_ENDPOINT]


def test_the_users_indexes_are_asked_main_one_first(pip: Callable[..., None]) -> None:
    pip(
        INDEX_URL="https://one.example/simple",
        EXTRA_INDEX_URL="https://two.example/a\nhttps://three.example/b",
    )
    assert wheels.simple_index_urls() == [
        "https://one.example/simple",
        "https://two.example/a",
        "https://three.example/b",
    ]


def test_pips_configuration_file_counts_and_the_environment_goes_first(
    pip: Callable[..., None], tmp_path: Path
) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://file.example/simple\nextra-index-url = https://file.example/x\n"
        "cert = /global.pem\n[install]\ncert = /install.pem\n"
    )
    pip(CONFIG_FILE=str(file), EXTRA_INDEX_URL="https://environment.example/x")
    assert wheels.simple_index_urls() == ["https://file.example/simple", "https://environment.example/x"]
    with wheels.open_session() as session:
        assert session.verify == "/install.pem"


def test_the_environment_alone_counts_where_there_is_no_pip(
    alone: Callable[..., None],
) -> None:
    alone(EXTRA_INDEX_URL="https://two.example/a")
    assert wheels.simple_index_urls() == [wheels.PYPI_SIMPLE_ENDPOINT, "https://two.example/a"]


def test_no_index_leaves_only_find_links(alone: Callable[..., None], tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels")
    alone(NO_INDEX="1", FIND_LINKS=str(tmp_path / "wheels"))
    assert wheels.simple_index_urls() == []
    assert [file.filename for file in wheels.release_files("Toy", "1.0.0")] == ["toy-1.0-py3-none-any.whl"]
    assert wheels.read_from_wheel("toy", "1.0", ["toy/__init__.py"]) == {"toy/__init__.py": b"x = 1\n"}


def test_an_index_on_disk_is_read_and_its_parts_are_kept(alone: Callable[..., None], tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "files")
    alone(INDEX_URL=make_index(tmp_path, wheel))
    wanted = {"toy/__init__.py": b"x = 1\n", "toy/data.bin": b"\x00\xff"}
    assert wheels.read_from_wheel("toy", "1.0", wanted) == wanted
    wheel.unlink()
    assert wheels.read_from_wheel("toy", "1.0", wanted) == wanted
    assert not [path for path in tmp_path.rglob("tmp*") if path.is_file()]


def test_an_index_on_the_web_is_read(alone: Callable[..., None], tmp_path: Path, web: str) -> None:
    make_index(tmp_path, make_wheel(tmp_path / "files"))
    alone(INDEX_URL=f"{web}/simple")
    (file,) = wheels.release_files("toy", "1.0")
    assert file.url == f"{web}/files/toy-1.0-py3-none-any.whl"


def test_a_server_without_range_requests_is_named(alone: Callable[..., None], tmp_path: Path, web: str) -> None:
    make_index(tmp_path, make_wheel(tmp_path / "files"))
    alone(INDEX_URL=f"{web}/simple")
    with pytest.raises(EnvironmentMissing, match=r"toy-1\.0-py3-none-any\.whl.*range requests"):
        wheels.read_from_wheel("toy", "1.0", ["toy/__init__.py"])


def test_a_page_of_links_on_the_web_counts_as_find_links(alone: Callable[..., None], tmp_path: Path, web: str) -> None:
    make_wheel(tmp_path / "files")
    make_wheel(tmp_path / "files", "other-1.0-py3-none-any.whl")
    alone(NO_INDEX="1", FIND_LINKS=f"{web}/files/")
    assert [file.filename for file in wheels.release_files("toy", "1.0")] == ["toy-1.0-py3-none-any.whl"]


def test_an_index_that_does_not_answer_does_not_hide_another(
    alone: Callable[..., None], tmp_path: Path, web: str
) -> None:
    make_wheel(tmp_path / "wheels")
    alone(
        INDEX_URL="http://127.0.0.1:9/simple",
        EXTRA_INDEX_URL=f"{web}/simple",
        FIND_LINKS=str(tmp_path / "wheels"),
    )
    assert len(wheels.release_files("toy", "1.0")) == 1


def test_what_was_not_found_says_where_it_was_looked_for_without_the_password(
    alone: Callable[..., None],
) -> None:
    alone(INDEX_URL="http://user:secret@127.0.0.1:9/simple")
    with pytest.raises(EnvironmentMissing) as caught:
        wheels.release_files("toy", "2.0")
    assert "cannot find a released file of toy 2.0 (searched: http://127.0.0.1:9/simple)" in caught.value.message
    assert "connection refused" in caught.value.message
    assert "secret" not in caught.value.message


class BusyIndex(QuietHandler):
    """An index of one file, /toy/, that breaks off or is busy for some requests first."""

    faults: ClassVar[list[int]] = []
    """What is left of them: a status, 0 to close the connection without an answer, 1 to cut one, 2 to be silent."""
    asked: ClassVar[int] = 0
    over: ClassVar[threading.Event] = threading.Event()
    """Until then it is silent."""

    def do_GET(self) -> None:
        BusyIndex.asked += 1
        if not BusyIndex.faults:
            page = b'<a href="/toy-1.0-py3-none-any.whl">toy-1.0-py3-none-any.whl</a>'
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
        elif BusyIndex.faults[0] == 1:
            BusyIndex.faults.pop(0)
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'<a href="/toy-1.0-py3')
            self.close_connection = True
        elif BusyIndex.faults[0] == 2:
            BusyIndex.faults.pop(0)
            BusyIndex.over.wait(60)
            self.close_connection = True
        elif status := BusyIndex.faults.pop(0):
            self.send_response(status)
            self.send_header("Retry-After", "3600")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self.close_connection = True


@pytest.fixture
def busy() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), BusyIndex) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        BusyIndex.asked = 0
        BusyIndex.over.clear()
        yield f"http://127.0.0.1:{server.server_port}"
        BusyIndex.over.set()
        server.shutdown()


@pytest.mark.parametrize("faults", [[503], [0], [504, 502], [0, 0], [1, 1]])
def test_an_index_that_is_busy_or_breaks_off_is_asked_again(
    alone: Callable[..., None], busy: str, faults: list[int]
) -> None:
    BusyIndex.faults = list(faults)
    alone(INDEX_URL=busy, RETRIES="2")
    assert len(wheels.release_files("toy", "1.0")) == 1
    assert len(faults) + 1 == BusyIndex.asked


def test_a_silent_index_is_asked_once_more(
    alone: Callable[..., None], busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "TIMEOUT", 0.2)
    BusyIndex.faults = [2] * 9
    alone(INDEX_URL=busy, RETRIES="5")
    with pytest.raises(EnvironmentMissing, match="no answer in time"):
        wheels.release_files("toy", "1.0")
    assert BusyIndex.asked == 2


def test_an_index_that_always_cuts_its_page_is_named(alone: Callable[..., None], busy: str) -> None:
    BusyIndex.faults = [1] * 9
    alone(INDEX_URL=busy, RETRIES="0")
    with pytest.raises(EnvironmentMissing, match=f"searched: {busy}.\ncannot read {busy}: the connection broke off"):
        wheels.released_wheels("toy")
    assert BusyIndex.asked == wheels.CUT_OFF


@pytest.mark.parametrize(("faults", "reason"), [([503] * 9, "it answers 503"), ([404], ""), ([403], "it answers 403")])
def test_the_last_answer_of_an_index_is_named(
    alone: Callable[..., None], busy: str, faults: list[int], reason: str
) -> None:
    BusyIndex.faults = list(faults)
    alone(INDEX_URL=busy, RETRIES="1")
    with pytest.raises(EnvironmentMissing, match="cannot find a released file of toy") as caught:
        wheels.release_files("toy", "1.0")
    assert reason in caught.value.message
    assert min(len(faults), 2) == BusyIndex.asked  # 403 and 404 are answers


def test_an_index_that_was_unreadable_is_not_asked_twice_at_once_and_is_asked_again_later(
    alone: Callable[..., None], busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    BusyIndex.faults = [503]
    alone(INDEX_URL=busy, RETRIES="0")
    for _ in range(2):
        with pytest.raises(EnvironmentMissing, match="it answers 503"):
            wheels.release_files("toy", "1.0")
    assert BusyIndex.asked == 1
    monkeypatch.setattr(wheels, "ASK_AGAIN_AFTER", 0.0)
    for _ in range(2):
        assert len(wheels.release_files("toy", "1.0")) == 1
    assert BusyIndex.asked == 2


@pytest.mark.parametrize(
    ("said", "times"), [("0", 0), ("8", 8), ("-1", 0), ("often", wheels.RETRIES), ("", wheels.RETRIES)]
)
def test_pips_setting_says_how_often_a_request_is_repeated(alone: Callable[..., None], said: str, times: int) -> None:
    alone(RETRIES=said)
    with wheels.open_session() as session:
        assert {session.get_adapter(f"{scheme}://x").max_retries.total for scheme in ("http", "https")} == {times}


def test_a_member_that_the_wheel_lacks_is_left_out(alone: Callable[..., None], tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels")
    alone(NO_INDEX="1", FIND_LINKS=str(tmp_path / "wheels"))
    assert wheels.read_from_wheel("toy", "1.0", ["toy/none.py"]) == {}


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "toy/../../x", "a\\b", ""])
def test_a_path_that_leaves_the_wheel_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="invalid path of a wheel's member"):
        wheels.read_from_wheel("toy", "1.0", [path])


def test_a_broken_wheel_is_named(alone: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "toy-1.0-py3-none-any.whl").write_bytes(b"no zip")
    alone(NO_INDEX="1", FIND_LINKS=str(tmp_path))
    with pytest.raises(EnvironmentMissing, match="File is not a zip file"):
        wheels.read_from_wheel("toy", "1.0", ["toy/__init__.py"])


def test_the_newest_build_for_this_processor_is_read(alone: Callable[..., None], tmp_path: Path) -> None:
    here = platform.machine()
    for name in (f"1.0-py3-none-linux_{here}", f"1.0-1-py3-none-linux_{here}", "1.0-2-py3-none-linux_s390x"):
        make_wheel(tmp_path / "wheels", f"toy-{name}.whl", text=name)
    alone(NO_INDEX="1", FIND_LINKS=str(tmp_path / "wheels"))
    read = wheels.read_from_wheel("toy", "1.0", ["toy/__init__.py"])
    assert read == {"toy/__init__.py": f"1.0-1-py3-none-linux_{here}".encode()}


def test_a_cache_that_cannot_be_written_is_no_error(alone: Callable[..., None], tmp_path: Path) -> None:
    alone(INDEX_URL=make_index(tmp_path, make_wheel(tmp_path / "files")))
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert wheels.read_from_wheel("toy", "1.0", ["toy/__init__.py"]) == {"toy/__init__.py": b"x = 1\n"}


@pytest.mark.network
@pytest.mark.skipif(
    os.environ.get("GEMMASPEC_OFFLINE") == "1",
    reason="GEMMASPEC_OFFLINE=1: the released wheels are on the package index",
)
def test_two_small_files_of_a_real_release_are_read_in_part_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wanted = ["vllm/_version.py", "vllm/version.py"]
    first = wheels.read_from_wheel("vllm", "0.33.0", wanted)
    assert b"0.33.0" in first["vllm/_version.py"]
    assert b"__version__" in first["vllm/version.py"]
    monkeypatch.setattr(wheels, "opened", lambda *_: pytest.fail("the cache was not used"))
    assert wheels.read_from_wheel("vllm", "0.33.0", wanted) == first
