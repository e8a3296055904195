"""A patched name that is bound again: what is patched may not be what runs, so the state is at least `drifted`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmaspec.core.launcher import launch
from gemmaspec.core.launcher.launch import Hunk, Patch, PatchResult
from tests.test_launch_places import HUNK, STOCK, known_edit, patch_of

CLASS = """\
import vllm.fast


class Planner:
    def plan(self, specs):
        try:
            return merged(specs)
        except AssertionError:
            return False

    def other(self):
        return self.plan({})


def free(specs):
    return specs
"""
IN_CLASS = Hunk(
    "Planner.plan", 8, ("        except AssertionError:",), ("        except (AssertionError, ValueError):",)
)
PATH = "vllm/a.py"

FUNCTION_AGAIN = [
    "plan.__code__ = other.__code__",
    "plan.__kwdefaults__ = {}",
    "plan = other",
    "plan: object = other",
    "(plan := other)",
    "plan, kept = other, plan",
    "from vllm._rust import plan",
    "from vllm._rust import fast as plan",
    "from vllm._rust import *",
    "import vllm.fast as plan",
    "try:\n    from vllm._rust import plan\nexcept ImportError:\n    pass",
    "if len(LIMITS) > 1:\n    plan = other",
    "for plan in (other,):\n    pass",
    "with open(__file__) as plan:\n    pass",
    "match other:\n    case plan:\n        pass",
    "del plan\n\n\ndef __getattr__(name):\n    return other",
    "globals()['plan'] = other",
    "globals().update(plan=other)",
    "vars()['pl' + 'an'] = other",
    "import sys\nsys.modules[__name__].plan = other",
    "import sys\nsetattr(sys.modules[__name__], 'plan', other)",
    "def _install():\n    global plan\n    plan = other\n\n\n_install()",
    "exec('plan = other')",
    "plan = choose(other, plan)",
]
METHOD_AGAIN = [
    "Planner.plan.__code__ = free.__code__",
    "Planner.plan.__defaults__ = (1,)",
    "Planner.plan = free",
    "Planner.plan, kept = free, 1",
    "del Planner.plan",
    "setattr(Planner, 'plan', free)",
    "type.__setattr__(Planner, 'plan', free)",
    "for name in ('plan',):\n    setattr(Planner, name, free)",
    "if free:\n    Planner.plan = free",
    "def _install():\n    Planner.plan = free\n\n\n_install()",
    "alias = Planner\nalias.plan = free",
    "class _Fast(Planner):\n    pass\n\n\nPlanner = _Fast",
    "from vllm._rust import Planner",
    "Planner = make(free)",
    "Planner.__dict__['plan'] = free",
]
IN_THE_CLASS = [
    "    plan = other",
    "    if free:\n        plan = other",
    "    from vllm._rust import plan",
    "    del plan",
]


def decided(text: str, hunk: Hunk, stock: str, version: str = "0.34.0") -> PatchResult:
    patch: Patch = replace(patch_of(known_edit(hunk, stock=stock)), superseded=())
    return launch.decide_patch(patch, version, {PATH: text.encode()}.get)


@pytest.mark.parametrize("version", ["0.33.0", "0.34.0", "0.33.1.dev3"])
@pytest.mark.parametrize("code", FUNCTION_AGAIN)
def test_a_function_that_is_bound_again_is_drifted(code: str, version: str) -> None:
    text = f"{STOCK}\n\n{code}\n"
    result = decided(text, HUNK, STOCK, version)
    assert result.state == "drifted"
    assert "plan is bound again in line " in result.files[0].detail
    plan = launch.Plan(1, "", "", (), (result.patch,), "", drift="refuse")
    assert launch.decide_plan(plan, version, {PATH: text.encode()}.get)[0][0].state == "conflict"
    done = text.replace("\n".join(HUNK.old), "\n".join(HUNK.new))
    assert decided(done, HUNK, STOCK, version).state == "drifted"  # not "applied": the patched code may not run


@pytest.mark.parametrize("code", METHOD_AGAIN)
def test_a_method_or_class_that_is_bound_again_is_drifted(code: str) -> None:
    assert decided(f"{CLASS}\n\n{code}\n", IN_CLASS, CLASS).state == "drifted"


@pytest.mark.parametrize("code", IN_THE_CLASS)
def test_a_method_that_its_class_binds_again_is_drifted(code: str) -> None:
    text = CLASS.replace("        return self.plan({})\n", f"        return self.plan({{}})\n\n{code}\n")
    assert decided(text, IN_CLASS, CLASS).state == "drifted"
    bound = CLASS.replace("        return self.plan({})\n", "        self.plan = free\n")
    assert decided(bound, IN_CLASS, CLASS).state == "drifted"


@pytest.mark.parametrize(("code", "hunk", "stock"), [
    ("plan = wrap(plan)", HUNK, STOCK), ("plan = wrap(size=3)(cached(plan))", HUNK, STOCK),
    ("planned = other\nother.plan_b = 1\nLIMITS = []", HUNK, STOCK), ("def _unused():\n    plan = other\n    return plan", HUNK, STOCK),
    ("class Other:\n    plan = other\n\n    def m(self):\n        self.plan = 1", HUNK, STOCK),
    ("Planner.plan = wrap(Planner.plan)", IN_CLASS, CLASS), ("setattr(Planner, 'plan', wrap(Planner.plan))", IN_CLASS, CLASS),
    ("Planner = wrap(Planner)", IN_CLASS, CLASS), ("Planner.planned = free\nplan = free", IN_CLASS, CLASS),
])  # fmt: skip
def test_a_wrapper_or_another_name_is_no_drift(code: str, hunk: Hunk, stock: str) -> None:
    assert decided(f"{stock}\n\n{code}\n", hunk, stock).state == "applies"


def test_a_fallback_in_python_beside_an_import_may_not_be_what_runs() -> None:
    start, end = STOCK.index("def plan"), STOCK.index("def other")
    body = "\n".join(f"    {line}" if line else "" for line in STOCK[start:end].rstrip().splitlines())
    stock = f"{STOCK[:start]}try:\n    from vllm._rust import plan\nexcept ImportError:\n{body}\n"
    deeper = replace(
        HUNK, old=("        except AssertionError:",), new=("        except (AssertionError, ValueError):",)
    )
    edit = known_edit(deeper, stock=stock)
    assert launch.decide_patch(patch_of(edit), "0.33.0", {PATH: stock.encode()}.get).state == "applies"  # as released
    assert decided(stock + "\n", deeper, stock, "0.34.0").state == "drifted"


def test_a_table_that_is_bound_again_is_drifted() -> None:
    table = Hunk("", 2, ('    "one",',), ('    "one",', '    "new",'))
    assert decided(STOCK + "\nLIMITS = []\n", table, STOCK).state == "drifted"
    assert decided(STOCK + "\nLIMITS_2 = []\n", table, STOCK).state == "applies"
    helper = Hunk("", 7, ("def plan(specs):",), ("def _clean(specs):", "    return specs", "", "", "def plan(specs):"))
    assert decided(STOCK + "\n_clean = len\n", helper, STOCK).state == "drifted"


REMADE = [
    "def remake(cls):\n    cls.plan = free\n    return cls\n\n\n@remake\nclass Planner:",
    "def remake(cls):\n    class Fast(cls):\n        def plan(self, specs):\n            return free\n\n    return Fast\n\n\n@remake\nclass Planner:",
    "def remake(size):\n    return lambda cls: type('P', (cls,), {'plan': free})\n\n\n@remake(2)\nclass Planner:",
    "def remake(cls):\n    return type('P', (cls,), dict(plan=free))\n\n\n@remake\nclass Planner:",
    "class Meta(type):\n    def __new__(m, n, b, space):\n        space['plan'] = free\n        return type.__new__(m, n, b, space)\n\n\nclass Planner(metaclass=Meta):",
    "class Base:\n    def __init_subclass__(cls):\n        setattr(cls, 'plan', free)\n\n\nclass Planner(Base):",
]


@pytest.mark.parametrize("head", REMADE)
def test_a_class_that_is_remade_with_another_method_is_drifted(head: str) -> None:
    text = CLASS.replace("class Planner:", head)
    assert decided(text, IN_CLASS, CLASS).state == "drifted"
    assert decided(text.replace("plan = free", "size = 1").replace("'plan'", "'size'").replace("def plan(self, specs):\n            ret", "def size(self, specs):\n            ret").replace("plan=", "size=").replace("space['plan']", "space['size']"), IN_CLASS, CLASS).state == "applies"  # fmt: skip
