"""A patched name that its module binds again: other code may run than the patched, so the state is at least `drifted`.

What an attribute, setattr or another module binds, the running processes attest (test_attest.py).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmaspec.core.launcher import launch
from gemmaspec.core.launcher.launch import Hunk, Patch, PatchResult
from tests.core.test_launch_places import HUNK, STOCK, known_edit, patch_of

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
    "exec('plan = other')",
    "plan = choose(other, plan)",
]
CLASS_AGAIN = [
    "class _Fast(Planner):\n    pass\n\n\nPlanner = _Fast",
    "from vllm._rust import Planner",
    "Planner = make(free)",
    "exec('')",
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


@pytest.mark.parametrize("code", CLASS_AGAIN)
def test_a_class_that_is_bound_again_is_drifted(code: str) -> None:
    assert decided(f"{CLASS}\n\n{code}\n", IN_CLASS, CLASS).state == "drifted"


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


def test_a_builtin_that_the_new_lines_use_and_the_module_binds_is_drifted() -> None:
    assert decided(f"ValueError = KeyError\n{STOCK}", HUNK, STOCK).state == "drifted"
    assert decided(f"TypeError = KeyError\n{STOCK}", HUNK, STOCK).state == "applies"


NESTED = """\
def create():
    class Builder:
        def update(self):
            return "stock"

        def other(self):
            return "other"

    {more}
    return Builder
"""


@pytest.mark.parametrize(
    ("more", "again"),
    [
        ("Builder.update = None", True),
        ("Builder.other = Builder.update", True),
        ("Builder = object", True),
        ("del Builder.update", True),
        ("setattr(Builder, 'update', None)", True),
        ("for Builder.update in ():\n        pass", True),
        ("made = Builder.update", False),
        ("Other.update = None", False),
        ("print(Builder)", False),
    ],
)
def test_what_a_function_binds_of_its_own_class_may_run_in_place_of_the_patch(more: str, again: bool) -> None:
    source = launch.Source(NESTED.format(more=more).encode())
    for scope in ("create.Builder.update", "create.Builder"):
        assert bool(launch.rebound(source, scope)) is again
