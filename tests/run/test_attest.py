"""The parts of attestation, each alone; tests/core/test_launch_start.py has whole starts, tests/real/test_attest_real.py vLLM."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest

from gemmaspec.core.errors import GemmaspecError, PatchConflict
from gemmaspec.core.launcher import attest_code as code_of
from gemmaspec.core.launcher import attest_sum as summing
from gemmaspec.run.engine.attested import OTHER_VERSION, parse_attested, with_attested
from gemmaspec.run.engine.server import EngineName, Server, State
from gemmaspec.run.ready.attested import ensure_attested
from gemmaspec.run.ready.failed import Ended, failed_start
from gemmaspec.run.ready.phases import Phase
from gemmaspec.run.trees import verdicts

PATCHED = "import functools\n\ndef value(a, b=2):\n    return {'patched', 'by us'} if a in (1, 2) else [x for x in b]\n"
HUNK = {"scope": "value", "old": ["    return 'stock'"], "new": [PATCHED.splitlines()[-1]]}


def function_in(text: str) -> types.CodeType:
    """The code of the first function of a module's text."""
    return next(code for _, code in code_of.functions_of(compile(text, "m.py", "exec")))


# Digests of code


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("def f():\n    return 1\n", "\n\n\ndef f():\n\n    return 1  # said\n", True),
        ("def f(a={'x', 'y'}): return a in {'x', 'y'}", "def f(a={'x', 'y'}): return a in {'y', 'x'}", True),
        ("def f(): return 1", "def f(): return 2", False),
        ("def f(): return 1", "def f(): return True", False),
        ("def f(): return 0.0", "def f(): return -0.0", False),
        ("def f(): return ''", "def f(): return b''", False),
        ("def f(a, b): return a", "def f(a, *, b): return a", False),
        ("def f(a): return a.b", "def f(a): return a.c", False),
        ("def f():\n try: x()\n except A: pass", "def f():\n try: x()\n except B: pass", False),
        ("def f(): return lambda: 1", "def f(): return lambda: 2", False),
        ("def f(): return [a for a in b]", "def f(): return [a for a in c]", False),
        ("def f(): yield 1", "async def f(): yield 1", False),
    ],
)
def test_a_digest_is_of_what_code_does_not_of_its_place(one: str, other: str, same: bool) -> None:
    assert (code_of.digest(function_in(one)) == code_of.digest(function_in(other))) is same


@pytest.mark.parametrize(
    ("scope", "new", "names"),
    [
        ("value", ["    return 1"], {"value"}),
        ("Planner.plan", ["x"], {"Planner.plan"}),
        ("Planner.plan.inner", ["x"], {"Planner.plan"}),
        ("Planner", ["    def more(self):", "        return 2"], {"Planner.more"}),
        ("", ["        return 2"], {"Planner.more"}),
        ("", ["A = 1"], set()),
        ("", ["def value():", "    return 1", "old"], {"value"}),  # put above decorators that are new there
        ("gone", ["not there"], set()),
    ],
)
def test_the_functions_that_a_hunk_changes_are_attested(scope: str, new: list[str], names: set[str]) -> None:
    text = (
        "A = 1\ndef value():\n    return 1\nclass Planner:\n    def plan(self):\n        def inner(): return 3\n"
        "        return inner\n    def more(self):\n        return 2\n"
    )
    hunk = {"scope": scope, "old": ["old"], "new": new}
    assert set(code_of.wanted(compile(text, "m", "exec"), text.encode(), [hunk])) == names


# What is bound


def file_of(text: str, **more: Any) -> dict[str, Any]:
    """A file as targets.json has it, whose last line a hunk has changed."""
    return {
        "module": "m",
        "file": "/nonexistent/m.py",
        "text": text,
        "sha256": "",
        "hunks": [HUNK],
        **more,
    }


def defaulted(fn: Any, values: Any) -> Any:
    fn.__defaults__ = values
    return fn


def module_of(text: str) -> types.ModuleType:
    module = types.ModuleType("m")
    exec(compile(text, "m.py", "exec", dont_inherit=True), vars(module))
    return module


class JITFunction:
    """A FAKE of Triton's, which needs a GPU's compiler: it keeps the function as `fn` and its text as `_src`."""

    __module__ = "triton.runtime.jit"

    def __init__(self, fn: Any, src: str = "", run: Any = None) -> None:
        self.fn = fn
        self._src = src or PATCHED.partition("\n\n")[2]
        if run:
            self.run = run

    def run(self, *args: Any) -> None:
        """Launch it, as a method of Triton's would."""


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """A FAKE of Triton's module, in which its class is."""
    module = types.ModuleType(JITFunction.__module__)
    module.JITFunction = JITFunction  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


class Compiled:
    """A FAKE of what torch.compile gives for a module; tests/real/test_attest_real.py has the real one for a function."""

    __module__ = "torch._dynamo.eval_frame"

    def __init__(self, fn: Any) -> None:
        self._torchdynamo_orig_callable = fn


def wrapped(fn: Any) -> Any:
    @functools.wraps(fn)
    def inner(*args: Any) -> Any:
        return fn(*args)

    return inner


def decoy(fn: Any) -> Any:
    def inner(*args: Any) -> Any:
        return True

    return functools.update_wrapper(inner, fn)


class Slotted:
    """A wrapper that keeps the function in a slot."""

    __slots__ = ("fn",)

    def __init__(self, fn: Any) -> None:
        self.fn = fn


REGISTRY = types.ModuleType("registry")


def registered(fn: Any) -> Any:
    REGISTRY.TABLE = {"value": fn}  # type: ignore[attr-defined]
    return lambda *args: REGISTRY.TABLE["value"](*args)


def by_weakref(fn: Any) -> Any:
    KEPT.append(fn)
    held = weakref.ref(fn)
    return lambda *args: held()(*args)


KEPT: list[Any] = []


class Caller:
    """A wrapper that is an object, and holds the function as an attribute of its own."""

    def __init__(self, fn: Any) -> None:
        functools.update_wrapper(self, fn)
        self.calls = fn


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda fn: fn, True),
        (wrapped, True),
        (lambda fn: wrapped(wrapped(fn)), True),
        (functools.lru_cache, True),
        (functools.singledispatch, True),
        (contextlib.contextmanager, True),
        (lambda fn: functools.partial(fn, b=[1]), True),
        (staticmethod, True),
        (classmethod, True),
        (property, True),
        (functools.cached_property, True),
        (JITFunction, True),
        (Compiled, True),
        (Caller, True),
        (lambda fn: types.FunctionType(fn.__code__, fn.__globals__, None, fn.__defaults__), True),
        (decoy, False),
        (lambda fn: wrapped(decoy(fn)), False),
        (lambda fn: property(fn, lambda self, value: None), False),
        (lambda fn: types.FunctionType(fn.__code__, dict(fn.__globals__)), False),
        (lambda fn: lambda *args: fn(*args), True),
        (Slotted, True),
        (lambda fn: (lambda held: lambda *args: held.fn(*args))(Slotted(fn)), True),
        (registered, True),
        (by_weakref, True),
        (lambda fn: mock.Mock(wraps=fn), True),
        (lambda fn: functools.partial(lambda call, *args: call(*args), fn), True),
        (lambda fn: mock.Mock(return_value=1), False),
        (lambda fn: JITFunction(fn, "def value(a, b=2):\n    return 1"), False),
        (lambda fn: JITFunction(fn, "def value(a, b=2)"), False),
        (lambda fn: JITFunction(fn, run=lambda *args: 1), False),
        (lambda fn: wrapped(JITFunction(fn, "def value(a, b=2):\n    return 1")), False),
        (lambda fn: defaulted(fn, (3,)), False),
        (lambda fn: defaulted(fn, (2.0,)), False),
        (lambda fn: defaulted(fn, None), False),
        (lambda fn: None, False),
        (lambda fn: types.SimpleNamespace(__wrapped__=fn), False),
    ],
)
def test_a_bound_name_is_seen_through_wrappers_that_hold_the_function(change: Callable[[Any], Any], same: bool) -> None:
    module = module_of(PATCHED)
    wants = code_of.expected(file_of(PATCHED)).functions["value"]
    module.value = change(module.value)
    assert (not code_of.difference(module, "value", wants).what) is same


REMADE = {
    "@remake\nclass A:": False,  # a decorator that gives a subclass
    "@keep\nclass A:": True,
    "@put\nclass A:": False,  # one that sets the method
    "class A(metaclass=Meta):": False,
    "class A(Base):": False,  # a base's __init_subclass__
}
MAKERS = """
def other(self):
    return "other"
def remake(cls):
    return type("A", (cls,), {"value": other})
def keep(cls):
    return type("A", (cls,), {"size": 1})
def put(cls):
    cls.value = other
    return cls
class Meta(type):
    def __new__(meta, name, bases, space):
        return type.__new__(meta, name, bases, {**space, "value": other})
class Base:
    def __init_subclass__(cls):
        setattr(cls, "val" + "ue", other)
"""


@pytest.mark.parametrize(("head", "same"), REMADE.items())
def test_a_class_that_is_remade_with_another_method_is_seen(head: str, same: bool) -> None:
    body = "\n    def value(self):\n        return 'patched'\n"
    code = dict(code_of.functions_of(compile(f"class A:{body}", "m.py", "exec", dont_inherit=True)))["A.value"]
    module = module_of(f"{MAKERS}\n{head}{body}")
    found = code_of.difference(module, "A.value", code_of.Function(codes={code_of.digest(code)}))
    assert (not found.what) is same
    assert same or found.what.endswith("other (m.py:2)")


def test_a_kernel_of_triton_is_no_wrapper_to_tell_of() -> None:
    """`triton.jit` makes an object of the function's own name, in released vLLM too."""
    for wrapper, told in ((JITFunction, 0), (Compiled, 1)):
        module = module_of(PATCHED)
        wants = code_of.expected(file_of(PATCHED)).functions["value"]
        module.value = wrapper(module.value)
        found = code_of.difference(module, "value", wants)
        assert (found.what, bool(found.through)) == ("", told)


def test_nothing_of_a_bound_object_is_run() -> None:
    class Trap:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was asked for")

    module = module_of(PATCHED)
    module.value = Trap()
    found = code_of.difference(module, "value", code_of.Function(codes={"x"}))
    assert (found.found is module.value, "Trap" in found.what) == (True, True)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("LIMIT = 8\nTABLE: dict = {(1, 'a'): [2, -3]}\nPAIR = (1, None)\n", {"LIMIT": 8, "TABLE": {(1, "a"): [2, -3]}, "PAIR": (1, None)}),
        ("class A:\n    SIZE = 2\n", {"A.SIZE": 2}),
        ("if True:\n    LIMIT = 8\n", {"LIMIT": 8}),
        ("LIMIT = 8\nLIMIT = 9\n", {}),  # what follows is for the file to say
        ("TABLE = {}\nTABLE |= {1: 2}\n", {}),
        ("TABLE = []\nTABLE.append(1)\n", {}),
        ("TABLE = [1]\nTABLE[0] = 2\n", {}),
        ("LIMIT = 8\ndef f():\n    global LIMIT\n    LIMIT = 9\n", {}),
        ("LIMIT = len('a')\n", {}),
    ],
)  # fmt: skip
def test_values_of_the_module_that_a_hunk_assigns_are_attested(text: str, values: dict[str, Any]) -> None:
    hunk = {"scope": "", "old": ["x"], "new": text.splitlines()}
    wants = code_of.expected(file_of(text, hunks=[hunk]))
    assert wants.values == values
    module = module_of(text)
    assert not any(found.what for _, found in code_of.names(module, wants))
    for name in values:
        holder = module.A if "." in name else module
        setattr(holder, name.rpartition(".")[2], True)
    assert all(found.what == "True" for name, found in code_of.names(module, wants) if name in values)


# The words of the processes


def word(pid: int | None = None, **more: Any) -> dict[str, Any]:
    pid = os.getpid() if pid is None else pid
    row = {"module": "vllm.a", "function": "f", "state": "attested", "required": True}
    return {
        "schema": 2, "pid": pid, "since": summing.born(pid), "title": "vllm serve", "python": "3.11", "cost_ms": 1.5,
        "roles": [summing.API_SERVER, summing.ENGINE_CORE, summing.WORKER], "rows": [row], **more,
    }  # fmt: skip


def targets(*modules: str, **more: Any) -> dict[str, Any]:
    files = [{"module": module, "runs": True} for module in modules or ("vllm.a",)]
    return {"leader": os.getpid(), "headless": False, "files": files, **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "attest/processes").mkdir(parents=True)
    (tmp_path / "attest/processes/1.json").write_text(json.dumps(word()))
    return tmp_path / "attest"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"[" * 9999, b'{"schema": 2}', b"x" * 300_000, b"\xff\xfe",
     json.dumps(word(rows=[{}])).encode(), json.dumps(word(rows=[word()["rows"][0]] * 999)).encode(),
     json.dumps(word(pid=True)).encode(), json.dumps(word(pid=2**40)).encode(), json.dumps(word(since="1")).encode(),
     json.dumps(word(cost_ms="x")).encode(), json.dumps(word(roles=1)).encode()],
    ids=range(15),
)  # fmt: skip
def test_a_word_that_is_none_is_left_out(folder: Path, content: bytes) -> None:
    (folder / "processes/2.json").write_bytes(content)
    found = summing.sum_up(str(folder), targets())
    assert [one["pid"] for one in found["processes"]] == [os.getpid()]
    assert json.loads((folder.parent / "attested.json").read_text())["processes"] == found["processes"]


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_nothing_but_a_file_is_read_or_waited_for(folder: Path, kind: str) -> None:
    file = folder / "processes/2.json"
    {"fifo": os.mkfifo, "link": lambda path: path.symlink_to(folder / "processes/1.json"), "folder": os.mkdir}[kind](
        file
    )
    assert len(summing.sum_up(str(folder), targets())["processes"]) == 1


def summed(folder: Path, *words: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The verdict as the host reads it."""
    (folder / "processes/1.json").write_text(json.dumps(words[0]))
    summing.sum_up(str(folder), targets(**more))
    return parse_attested((folder.parent / "attested.json").read_bytes())


def test_a_state_that_is_unknown_counts_as_different(folder: Path) -> None:
    assert summed(folder, word(rows=[{**word()["rows"][0], "state": "fine"}]))["state"] == "different"


@pytest.mark.parametrize(
    "text",
    [None, b"", b"{}", b"[]", b"[" * 9999, b'{"schema": "1", "state": "attested", "processes": [1]}',
     b'{"schema": 2, "state": "attested", "processes": [{}], "text": "", "problems": [], "notes": []}',
     b'{"schema": 2, "state": "attested", "processes": [], "text": "fine", "problems": [], "notes": []}',
     b'{"schema": 2, "state": "fine", "processes": [], "text": "fine", "problems": [], "notes": []}'],
)  # fmt: skip
def test_a_verdict_that_is_none_is_not_attested(text: bytes | None) -> None:
    assert parse_attested(text)["state"] == "not attested"
    report = with_attested({"attestation": {}}, text)
    assert "no process has attested" in report["attested"]["text"]
    assert with_attested({}, text) == {}


@pytest.mark.parametrize("schema", [1, 3])
def test_a_verdict_of_another_version_is_named_as_that(schema: int) -> None:
    verdict = parse_attested(json.dumps({"schema": schema, "state": "attested", "processes": [1]}).encode())
    assert (verdict["state"], verdict["problems"]) == ("not attested", [OTHER_VERSION])
    assert "a restart attests it again" in verdict["text"]


ROW = word()["rows"][0]
CORE = {**ROW, "module": "vllm.v1.core.utils"}
ABSENT = {**CORE, "function": "", "state": "not imported"}
ENGINE = word(title="VLLM::EngineCore", roles=[summing.ENGINE_CORE], rows=[CORE])
SERVES = word(roles=[summing.API_SERVER])
WORKS = word(title="VLLM::Worker", roles=[summing.WORKER])


@pytest.mark.parametrize(
    ("words", "modules", "headless", "text"),
    [
        ([SERVES, ENGINE, WORKS], ["vllm.a", "vllm.v1.core.utils"], False, "attested: 2 functions in 3 processes"),
        # a fork calls another module, and the patched file stays where it was, unused
        ([SERVES, {**ENGINE, "rows": []}, WORKS], ["vllm.v1.core.utils"], False, "vllm.v1.core.utils: imported by no engine core"),
        # what the API server imports says nothing of the process that is to run it
        ([word(rows=[CORE]), {**ENGINE, "rows": [ABSENT]}], ["vllm.v1.core.utils"], False, "vllm.v1.core.utils: imported by no engine core"),
        ([SERVES, ENGINE, WORKS], ["vllm.gone"], False, "vllm.gone: imported by no process"),
        ([ENGINE, WORKS], ["vllm.v1.core.utils"], False, "no API server has looked before it was ready"),
        ([SERVES, ENGINE], ["vllm.v1.core.utils"], False, "no worker has looked before it was ready"),
        ([WORKS], ["vllm.v1.core.utils", "vllm.a"], True, "attested: 1 function in 1 process"),
        ([], ["vllm.a"], False, "no process has attested its patched functions"),
    ],
)  # fmt: skip
def test_every_function_is_seen_where_it_is_to_run(
    words: list[dict[str, Any]], modules: list[str], headless: bool, text: str
) -> None:
    found = summing.judged(words, [], targets(*modules, headless=headless))
    assert text in found["text"]
    assert (found["state"] == "attested") is text.startswith("attested")


def test_a_process_of_vllm_that_has_not_looked_is_not_attested() -> None:
    found = summing.judged([word()], ["VLLM::Worker (pid 7)"], targets())
    assert found["text"] == "NOT ATTESTED: VLLM::Worker (pid 7) has not looked before it was ready"


def test_what_a_process_says_cannot_move_the_terminal(folder: Path) -> None:
    row = {**ROW, "state": "different", "found": "\x1b[2J it is now evil\r\n"}
    assert summed(folder, word(rows=[row], title="\x1b]0;x\x07"))["text"].isprintable()


# Before ready


class Reporting:
    """A FAKE engine that reports what a test says, the last one for ever."""

    name: ClassVar[EngineName] = "process"

    def __init__(self, *reports: dict[str, Any] | None) -> None:
        self.reports = list(reports)

    def report(self, server: Server) -> dict[str, Any] | None:
        return self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]


def reported(*words: dict[str, Any], silent: tuple[str, ...] = ()) -> dict[str, Any]:
    found = summing.judged(words, silent, targets())
    row = {"path": "vllm/a.py", "state": "applies", "line": 1, "detail": "", "sha256_before": "a", "sha256_after": "b"}
    patches = [{"patch": "one", "required": True, "state": "applies", "variant": "all", "files": [row]}]
    report = {"attestation": {"plugins": []}, "patches": patches, "vllm": {"version": "0.32.0", "path": "/vllm"}}
    return with_attested(report, json.dumps(found).encode())


OTHER = [{**ROW, "state": "different", "found": "it is now g (/x.py:1)"}]
SERVER = Server(name="pair", folder=Path("/nonexistent"), port=1, model="tiny", speculates=True)
SILENT = ("VLLM::Worker (pid 7)",)


def ensured(*reports: dict[str, Any] | None) -> float:
    """How long the wait took by its own clock."""
    time = [0.0]
    engine: Any = Reporting(*reports)
    ensure_attested(engine, SERVER, clock=lambda: time[0], sleep=lambda s: time.__setitem__(0, time[0] + s))
    return time[0]


def test_ready_waits_for_a_process_that_is_late() -> None:
    assert ensured(reported(word(), silent=SILENT), reported(word())) > 0
    assert ensured(reported(word())) == ensured(None) == ensured({"patches": []}) == 0  # nothing is patched


@pytest.mark.parametrize(
    ("report", "says", "waits"),
    [
        (reported(), "no process has attested", True),
        (reported(word(), silent=SILENT), "VLLM::Worker (pid 7) has not looked", True),
        (reported(word(rows=OTHER)), "vllm.a.f: it is now g", False),
    ],
)
def test_a_server_that_is_not_attested_is_not_ready(report: dict[str, Any], says: str, waits: bool) -> None:
    with pytest.raises(PatchConflict) as error:
        ensured(report)
    assert says in error.value.message
    assert error.value.exit_code == 5


def test_a_start_that_its_own_process_ended_is_a_conflict_with_what_it_said() -> None:
    line = "gemmaspec: not attested: process 9 (VLLM::Worker): vllm.a.f is not the patched one: it is now g"
    lines = ["gemmaspec: overlay ready in 4.2 ms, starting vllm", "INFO loading", line, "Traceback"]
    ended = Ended(name="pair", phase=Phase.IMPORTING, seconds=9, state=State(status="exited", exit_code=5), lines=lines)
    for state in (ended.state, replace(ended.state, exit_code=None)):
        error: GemmaspecError = failed_start(replace(ended, state=state))
        assert isinstance(error, PatchConflict)
        assert "vllm.a.f is not the patched one" in error.message


def test_a_running_server_whose_function_was_replaced_is_a_conflict_of_its_patch() -> None:
    (fine,) = verdicts.verdicts(reported(word()), ())
    (replaced,) = verdicts.verdicts(reported(word(rows=OTHER)), ())
    (silent,) = verdicts.verdicts(reported(word(), silent=SILENT), ())
    assert (fine.state, replaced.state, silent.state) == ("applied", "conflict", "conflict")
    assert "it is now g" in replaced.files[0].detail
    assert "VLLM::Worker (pid 7) has not looked" in silent.files[0].detail
