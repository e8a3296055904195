"""Ways to install and to start vLLM: each runs the patched functions in all its processes, or ends with exit code 5.

On a FAKE vLLM whose processes are real; tests/real/test_attest_real.py has the real one.
"""

from __future__ import annotations

import compileall
import json
import os
import py_compile
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gemmaspec.core.launcher import origins
from gemmaspec.run.engine.attested import parse_attested
from tests.support.attesting import (
    FOR_S,
    SERVE,
    attested,
    said,
    served,
    serving_place,
    until,
    write_doors,
    write_program,
)
from tests.support.launching import CORE, Place, patch_of, plan_of, write_package


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to install or start vLLM, and how it has to end."""

    ends: str
    """attested, refused (before exec), stopped (by a process of the server), or silent (no process attests)."""
    says: tuple[str, ...] = ()
    arrange: Callable[[Place], Any] = lambda _: None
    env: Mapping[str, str] = field(default_factory=dict)
    tamper: str = ""
    plan: Mapping[str, Any] = field(default_factory=plan_of)
    command: tuple[str, ...] = ("vllm", "serve")


def first_line(line: str) -> Callable[[Place], Any]:
    """The program's first line; {python} is the environment's Python."""
    return lambda place: write_program(place, f"{line.format(python=place.python)}\n{SERVE}")


def other_tree(place: Place) -> Path:
    """Another vLLM, unpatched."""
    write_package(place.run_dir.parent / "other/vllm")
    write_doors(place.run_dir.parent / "other")
    return place.run_dir.parent / "other"


def finder(place: Place, *, first: bool) -> None:
    """What build backends write for an editable install: a finder of its own."""
    text = f"""\
import importlib.util, os, sys
class EditableFinder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "vllm":
            inside = os.path.join({str(other_tree(place))!r}, *name.split("."))
            folder = os.path.isdir(inside)
            file = os.path.join(inside, "__init__.py") if folder else inside + ".py"
            return importlib.util.spec_from_file_location(
                name, file, submodule_search_locations=[inside] if folder else None)
sys.meta_path.{"insert(0, EditableFinder())" if first else "append(EditableFinder())"}
"""
    (place.site / "_editable.py").write_text(text)
    (place.site / "_editable.pth").write_text("import _editable\n")


def into_site(name: str, text: str) -> Callable[[Place], Any]:
    """A file in site-packages; {other} is another tree, {site} the folder itself."""
    return lambda place: (place.site / name).write_text(
        text.replace("{other}", str(other_tree(place))).replace("{site}", str(place.site))
    )


def wrapper(script: str) -> Callable[[Place], Any]:
    """A shell script in place of the program, which runs the real one."""

    def arrange(place: Place) -> None:
        real = place.python.parent / "vllm-real"
        real.write_text(f"#!{place.python}\n{SERVE}")
        real.chmod(0o755)
        write_program(place, f"#!/bin/sh\n{script.format(real=real, other=other_tree(place))}\n")

    return arrange


def beside(name: str) -> Callable[[Place], Any]:
    """A file or folder beside the patched v1/core.py."""

    def arrange(place: Place) -> None:
        made = place.package / "v1" / name
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text("")

    return arrange


def plugin(body: str) -> Callable[[Place], Any]:
    """A distribution with a general plugin; `core` is the patched module."""

    def arrange(place: Place) -> None:
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        (place.site / "foreign_plugin.py").write_text(f"def register():\n    import vllm.v1.core as core\n{lines}\n")
        info = place.site / "foreign-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[vllm.general_plugins]\nfaster = foreign_plugin:register\n")

    return arrange


def stale_cache(place: Place) -> None:
    """Compiled files of stock code that Python does not check, where PYTHONPYCACHEPREFIX looks for the overlay's."""
    overlay = place.run_dir / "overlay/vllm/v1"
    kept = Path(f"{place.run_dir.parent}/pyc{overlay}")
    kept.mkdir(parents=True)
    source = kept / "core.py"
    source.write_text(CORE)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(source), cfile=str(kept / f"core.{TAG}.pyc"), invalidation_mode=mode)


TAG = f"{sysconfig.get_config_var('SOABI') and 'cpython-' + sysconfig.get_config_var('py_version_nodot')}"
REPLACE = "core.value = lambda: 'foreign'"
CORE_IS = "import vllm.v1.core as core\n"
WRAP = "import functools\noriginal = core.value\n@functools.wraps(original)\ndef value():\n    return {returns}\ncore.value = value"
CLASS_HUNK = {
    "scope": "Planner.plan", "line": 5,
    "old": ["        except AssertionError:"], "new": ["        except (AssertionError, ValueError):"],
}  # fmt: skip
METHOD = plan_of(patch_of("one", CLASS_HUNK))
SUBCLASS = CORE_IS + "class Planner(core.Planner):\n    {body}\ncore.Planner = Planner\n"
FORK = (
    CORE_IS
    + "pid = os.fork()\nif pid == 0:\n    core.value = lambda: 'child'\nelif os.waitpid(pid, 0)[1]:\n    raise SystemExit(1)  # as vLLM does when one of its processes ends\n"
)
OPTIONAL = plan_of({**patch_of(), "required": False})

VALUES = {
    "scope": "",
    "line": 15,
    "old": ["def value():"],
    "new": [
        "LIMIT = 16",
        "TABLE = {(1, 2): [3]}",
        "",
        "",
        "def limited(size=16, *, most=4):",
        "    return size",
        "",
        "",
        "def value():",
    ],
}
VALUE = plan_of(patch_of("one", VALUES))
WAYS = {
    # how the program begins
    "a console script in a venv": Way(ends="attested"),
    "python -m": Way(ends="attested", command=("python", "-m", "served"), arrange=into_site("served.py", SERVE)),
    "env python3": Way(ends="attested", arrange=first_line("#!/usr/bin/env python3"), env={"PATH": "{bin}:/usr/bin:/bin"}),
    "python -O": Way(ends="attested", arrange=first_line("#!{python} -O")),
    "python -OO": Way(ends="attested", arrange=first_line("#!{python} -OO")),
    "python -sP": Way(ends="attested", arrange=first_line("#!{python} -sP")),
    "python -B": Way(ends="attested", arrange=first_line("#!{python} -B")),
    "python -E": Way(ends="refused", says=("PYTHONPATH", "ignore_environment"), arrange=first_line("#!{python} -E")),
    "python -I": Way(ends="refused", says=("PYTHONPATH", "isolated"), arrange=first_line("#!{python} -I")),
    "python -I -m": Way(ends="refused", says=("isolated",), command=("python", "-I", "-m", "vllm")),
    "env -S python -E": Way(ends="refused", says=("ignore_environment",), arrange=first_line("#!/usr/bin/env -S {python} -E")),
    "a path too long for a first line": Way(ends="attested", arrange=first_line("#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''")),
    "a long path and -E": Way(ends="refused", says=("ignore_environment",), arrange=first_line("#!/bin/sh\n'''exec' \"{python}\" -E \"$0\" \"$@\"\n' '''")),
    "an interpreter that does not come up": Way(ends="needs", says=("cannot ask", "next: "), arrange=into_site("stop.pth", "import os; os._exit(9) if 'asked.py' in open('/proc/self/cmdline').read() else 0\n")),
    # what runs before the program
    "a finder that is first": Way(ends="refused", says=("EditableFinder", "/other/vllm/v1/core.py"), arrange=lambda place: finder(place, first=True)),
    "a finder that is last": Way(ends="attested", arrange=lambda place: finder(place, first=False)),
    "a .pth that puts another tree first": Way(ends="refused", says=("/other/vllm/v1/core.py",), arrange=into_site("first.pth", "import sys; sys.path.insert(0, '{other}')\n")),
    "a .pth with a finder that raises": Way(ends="needs", says=("cannot look for vllm: NameError: name 'absent' is not defined", "next: remove the import finder"), arrange=into_site("raises.pth", "import sys; sys.meta_path.insert(0, type('Raises', (), {'find_spec': staticmethod(lambda name, *_: absent if name == 'vllm' else None)}))\n")),
    "a .pth that adds another tree": Way(ends="attested", arrange=into_site("more.pth", "{other}\n")),
    "a sitecustomize that puts site-packages first": Way(ends="refused", says=("site-packages/vllm/v1/core.py",), arrange=into_site("sitecustomize.py", "import sys; sys.path.insert(0, '{site}')\n")),
    "a sitecustomize that does something else": Way(ends="attested", arrange=into_site("sitecustomize.py", "import os; os.environ['RAN'] = '1'\n"), tamper="assert os.environ['RAN'] == '1'"),
    "a usercustomize": Way(ends="attested", arrange=into_site("usercustomize.py", "import json\n")),
    "a wrapper that puts another tree first": Way(ends="stopped", says=("/other/vllm/v1/core.py",), arrange=wrapper("PYTHONPATH={other}:$PYTHONPATH exec {real} \"$@\"")),
    "a wrapper that does not exec": Way(ends="stopped", says=("/other/vllm/v1/core.py",), arrange=wrapper("PYTHONPATH={other}:$PYTHONPATH {real} \"$@\"")),
    "a wrapper that sets a variable": Way(ends="attested", arrange=wrapper("MINE=1 exec {real} \"$@\"")),
    "a wrapper that unsets PYTHONPATH": Way(
        ends="silent",
        arrange=wrapper("unset PYTHONPATH; exec {real} \"$@\""),
        says=("WARNING: ", "a required patch may not run"),
    ),
    "a program that puts another tree first": Way(ends="stopped", says=("/other/vllm/v1/core.py",), arrange=lambda place: write_program(place, f"#!{place.python}\nimport sys; sys.path.insert(0, {str(other_tree(place))!r})\n{SERVE}")),
    # what lies beside the patched file
    "a compiled module beside it": Way(ends="refused", says=("core.cpython-311-x86_64-linux-gnu.so",), arrange=beside("core.cpython-311-x86_64-linux-gnu.so")),
    "a module compiled for another Python beside it": Way(ends="attested", arrange=beside("core.cpython-310-x86_64-linux-gnu.so")),
    "a module compiled for another machine beside it": Way(ends="attested", arrange=beside("core.cpython-311-aarch64-linux-gnu.so")),
    "an .abi3.so beside it": Way(ends="refused", says=("core.abi3.so",), arrange=beside("core.abi3.so")),
    "a package beside it": Way(ends="refused", says=("v1/core/__init__.py",), arrange=beside("core/__init__.py")),
    "a folder without __init__ that it lies in": Way(ends="attested", arrange=lambda place: (place.package / "v1" / "__init__.py").unlink()),
    "a folder without __init__ beside it": Way(ends="attested", arrange=beside("core/notes.txt")),
    "a module of a longer name beside it": Way(ends="attested", arrange=beside("core_more.so")),
    "compiled files that Python does not check": Way(ends="attested", arrange=lambda place: compileall.compile_dir(place.package, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)),
    "compiled files of old code elsewhere": Way(ends="stopped", says=("vllm.v1.core.value", "stock"[:0]), arrange=stale_cache, env={"PYTHONPYCACHEPREFIX": "{root}/pyc"}),
    # what runs in the server
    "a plugin that replaces the function": Way(ends="stopped", says=("vllm.v1.core.value is not the patched one", "foreign_plugin.py:3", "of the plugin faster"), arrange=plugin(REPLACE)),
    "a plugin that VLLM_PLUGINS keeps out": Way(ends="attested", says=("faster (foreign_plugin:register, foreign-1.0) is kept out",), arrange=plugin(REPLACE), env={"VLLM_PLUGINS": "other"}),
    "a plugin, with no plugin allowed": Way(ends="attested", arrange=plugin(REPLACE), env={"VLLM_PLUGINS": ""}),
    "a plugin that does something else": Way(ends="attested", says=("plugin faster",), arrange=plugin("core.more = 1")),
    "a plugin that wraps the function": Way(ends="attested", arrange=plugin(WRAP.format(returns="original()"))),
    "a plugin that only looks like a wrapper": Way(ends="stopped", says=("foreign_plugin.register.<locals>.value"[:14],), arrange=plugin(WRAP.format(returns="'foreign'"))),
    "functools.lru_cache around it": Way(ends="attested", tamper=CORE_IS + "import functools; core.value = functools.lru_cache(core.value)"),
    "other code in the same function": Way(ends="stopped", tamper=CORE_IS + "core.value.__code__ = (lambda: 'foreign').__code__"),
    "the same code in another module": Way(ends="stopped", tamper=CORE_IS + "import types; core.value = types.FunctionType(core.value.__code__, dict(vars(core)))"),
    "a function that is deleted": Way(ends="stopped", says=("it is now nothing",), tamper=CORE_IS + "del core.value"),
    "another module in its place": Way(ends="stopped", tamper=CORE_IS + "import types; sys.modules['vllm.v1.core'] = types.ModuleType('core')"),
    "old code run in the module again": Way(ends="stopped", tamper=CORE_IS + "exec(compile(\"def value():\\n    return 'stock'\\n\", core.__file__, 'exec'), vars(core))"),
    "a name that the file binds again": Way(ends="stopped", arrange=lambda place: (place.package / "v1/core.py").write_text(CORE + "\n\ndef _v2():\n    return 'stock'\n\n\nvalue = _v2\n")),
    "a change some time after the plugins": Way(ends="stopped", tamper=CORE_IS + "import threading; later = threading.Timer(0.1, setattr, (core, 'value', len)); later.start(); later.join()"),
    "a method that is replaced": Way(ends="stopped", says=("vllm.v1.core.Planner.plan",), plan=METHOD, tamper=CORE_IS + "core.Planner.plan = lambda self, specs: True"),
    "a method that stays": Way(ends="attested", plan=METHOD),
    "a subclass that overrides it": Way(ends="stopped", plan=METHOD, tamper=SUBCLASS.format(body="plan = lambda self, specs: True")),
    "a subclass that does not": Way(ends="attested", plan=METHOD, tamper=SUBCLASS.format(body="pass")),
    "a value that is replaced": Way(ends="stopped", says=("vllm.v1.core.LIMIT", "it is now 8"), plan=VALUE, tamper=CORE_IS + "core.LIMIT = 8"),
    "a table that is changed": Way(ends="stopped", says=("vllm.v1.core.TABLE",), plan=VALUE, tamper=CORE_IS + "core.TABLE[1, 2] = [4]"),
    "values that stay": Way(ends="attested", plan=VALUE),
    "other defaults": Way(ends="stopped", says=("other defaults",), plan=VALUE, tamper=CORE_IS + "core.limited.__defaults__ = (1,)"),
    "other keyword defaults": Way(ends="stopped", says=("other defaults",), plan=VALUE, tamper=CORE_IS + "core.limited.__kwdefaults__ = {'most': 1}"),
    "the package's attribute": Way(ends="stopped", says=("has another module",), tamper=CORE_IS + "import types, vllm.v1; vllm.v1.core = types.ModuleType('other')"),
    "a package on the way": Way(ends="stopped", says=("has another module",), tamper=CORE_IS + "import types; sys.modules['vllm'].v1 = types.ModuleType('other')"),
    "a module that is deleted and changed": Way(ends="stopped", tamper=CORE_IS + "del sys.modules['vllm.v1.core']; core.value = len"),
    "a module that is deleted": Way(ends="attested", tamper=CORE_IS + "del sys.modules['vllm.v1.core']"),
    "a module that is imported twice": Way(ends="stopped", tamper=CORE_IS + "del sys.modules['vllm.v1.core']; import vllm.v1.core; core.value = len"),
    "a module that is loaded again": Way(ends="attested", tamper=CORE_IS + "import importlib; importlib.reload(core)"),
    "a plain closure": Way(ends="attested", says=(), tamper=CORE_IS + "old = core.value; core.value = (lambda fn: lambda *a: fn(*a))(old)"),
    "a plain wrapper": Way(ends="attested", tamper=CORE_IS + "old = core.value; core.value = lambda *a: old(*a)"),
    "mock wraps=": Way(ends="attested", tamper=CORE_IS + "from unittest import mock; core.value = mock.Mock(wraps=core.value)"),
    "mock": Way(ends="stopped", tamper=CORE_IS + "from unittest import mock; mock.patch.object(core, 'value').start()"),
    "operator.setitem": Way(ends="stopped", tamper=CORE_IS + "import operator; operator.setitem(vars(core), 'value', len)"),
    "an overlay that is cleaned away": Way(ends="attested", tamper=CORE_IS + "os.remove(core.__file__)"),
    "a module that nobody imports": Way(ends="unseen", says=(), arrange=lambda place: write_program(place, f"#!{place.python}\n{SERVE.replace('import vllm.v1.core', '')}")),
    "a forked process that replaces it": Way(ends="stopped", tamper=FORK),
    "an optional patch that is replaced": Way(ends="optional", says=("not attested",), plan=OPTIONAL, tamper=CORE_IS + REPLACE),
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_every_way_to_start_ends_rightly(name: str, tmp_path: Path) -> None:
    way, place = WAYS[name], serving_place(tmp_path)
    way.arrange(place)
    env = {key: value.format(bin=place.python.parent, root=tmp_path) for key, value in way.env.items()}
    with served(place, way.plan, *way.command, env={**env, "TAMPER": way.tamper}) as process:
        if way.ends in ("refused", "needs", "stopped"):
            code, err = process.wait(FOR_S), said(place)
            assert code == (4 if way.ends == "needs" else 5), err
            assert ("starting vllm" in err) is (way.ends == "stopped")
            assert "next: " in err
        else:
            assert process.stdout
            assert process.stdout.readline() == "up\n"
            found = until(lambda: settled(place, way.ends))
            assert process.poll() is None
            err = said(place)
            assert found["state"] == ("not attested" if way.ends in ("silent", "unseen") else "attested"), found["text"]
            assert way.ends != "unseen" or "vllm.v1.core: imported by no process" in found["text"]
            wraps = any(word in name for word in ("wraps", "lru_cache", "plain closure", "plain wrapper"))
            assert bool(found["notes"]) is (wraps or way.ends == "optional")
    for words in way.says:
        assert words in err, err


def settled(place: Place, ends: str) -> dict[str, Any] | None:
    """The verdict, once all processes serve."""
    found = attested(place)
    return parse_attested(None) if ends == "silent" else found and parse_attested(json.dumps(found).encode())


def test_an_interpreter_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    hangs = tmp_path / "python"
    hangs.write_text("#!/bin/sh\nsleep 600\n")
    hangs.chmod(0o755)
    with pytest.raises(origins.Refused) as error:
        origins.ask([str(hangs)], "vllm", ["vllm.v1.core"], dict(os.environ), wait_s=0.5)
    assert error.value.code == 4
    assert "gave no answer" in error.value.lines[0]


def test_a_program_that_cannot_be_asked_is_refused_where_the_profile_refuses_drift(tmp_path: Path) -> None:
    target = origins.Target("vllm.a", "/vllm/a.py", b"", (), True, True)
    with pytest.raises(origins.Refused) as error:
        origins.Attestation([target], tmp_path, {}).refuse_unasked("/bin/vllm", "refuse", print)
    assert error.value.code == 5
    assert "required patch is in: vllm.a" in "\n".join(error.value.lines)
