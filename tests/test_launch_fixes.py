"""A fix in other words is recognised where a rule's statement stands; what only looks like one never is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmaspec.launcher.launch import FileEdit, Hunk, Patch, Rule, decide_patch
from tests.test_launch_places import HUNK, PATH, STOCK, known_edit, patch_of

OLD, OTHER_TRY = "    except AssertionError:\n        return False\n", "    try:\n        len(specs)\n{}"
CALLS = """\
import threading

from vllm.kinds import Uniform

logger = threading.getLogger(__name__)


def share(groups, layer, owner):
    if not groups:
        return
    for group in groups:
        target = group[owner]
        target.names.append(layer)
        if owner is None:
            groups.add(layer)
"""
STORE = Rule(
    PATH,
    "share",
    was="target = group[owner]\n...",
    fixed=(
        "target = group[owner]\n...\nif isinstance(target.spec, Uniform):\n    target.spec.all[layer] = target.spec.all[owner]",
    ),
)
APPEND = Hunk(
    "share", 13, ("        target.names.append(layer)",), ("        target.names.append(layer)", "        fix(target)")
)


def handler(code: str) -> str:
    return STOCK.replace(OLD, "".join(f"    {line}\n" for line in code.splitlines()))


def state(text: str, patch: Patch | None = None) -> str:
    states = {decide_patch(patch or patch_of(), one, {PATH: text.encode()}.get).state for one in ("0.33.0", "0.34.0")}
    assert len(states) == 1
    return states.pop()


@pytest.mark.parametrize("code", [
    "except (ValueError, AssertionError):\n    return False", "except (AssertionError, ValueError) as e:\n    return False",
    "except (AssertionError, ValueError, KeyError):\n    return False", "except Exception:\n    return False",
    "except:\n    return False", "except (AssertionError, ValueError):\n    pass\n    return False",
])  # fmt: skip
def test_the_handler_in_other_words_is_superseded(code: str) -> None:
    assert state(handler(code)) == "superseded"


BOTH = "except (AssertionError, ValueError):\n    return False"
LOOK_ALIKES = [
    handler("except AssertionError as e:\n    return False"),
    handler("except (AssertionError):\n    return False"),
    handler("except (AssertionError, KeyError):\n    return False"),
    handler("except (AssertionError, ValueError):\n    return None"),
    handler("except (AssertionError, specs.Error, ValueError) as e:\n    return False"),
    handler("except (AssertionError, ValueError) as specs:\n    return False"),
    handler("except (AssertionError, ValueError):\n    logger.debug(undefined)\n    return False"),
    handler("except (AssertionError, ValueError):\n    logger.debug('no logger in this module')\n    return False"),
    handler(f"except KeyError:\n    try:\n        pass\n    {BOTH.replace(chr(10), chr(10) + '    ')}"),
    handler("except (AssertionError):\n    return False").replace(
        "    if not specs", OTHER_TRY.format("    except (AssertionError, ValueError):\n        return False\n") + "    if not specs"
    ),
    handler(BOTH).replace("        values =", "        pass\n    except KeyError:\n        return False\n    try:\n        values ="),
    handler(BOTH).replace("    try:", "    specs.pop()\n    try:"),
    handler(BOTH).replace("    try:", "    if False:\n      try:").replace("    except", "      except", 1),
    handler(BOTH) + "\n\nclass ValueError(Exception):\n    pass\n",
    handler(BOTH) + "\n\nfrom vllm.kinds import *\n",
    handler(BOTH).replace("LIMITS = [", "from vllm.kinds import *\n\nLIMITS = [", 1).replace("(AssertionError, ValueError)", "(ValueError, AssertionError)"),
    handler("except (ValueError, AssertionError):\n    return False") + "\n\nplan = other\n",
    handler("except (ValueError, AssertionError):\n    return False").replace("def plan(specs)", "def plan(specs, ValueError=None)"),
]  # fmt: skip


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_a_look_alike_is_never_superseded(text: str) -> None:
    compile(text, "text", "exec")
    assert state(text) in ("conflict", "ambiguous", "drifted")


def sharing(code: str, before: str = "        if owner is None") -> str:
    lines = "".join(f"        {line}\n" for line in code.splitlines())
    return CALLS.replace(before, lines + before)


SHARING = patch_of(known_edit(APPEND, stock=CALLS), rules=(STORE,))
FIX = "if isinstance(target.spec, Uniform):\n    target.spec.all[layer] = target.spec.all[owner]"


@pytest.mark.parametrize("code", [
    FIX, FIX.replace("all[layer] = target.spec.all[owner]", "all.setdefault(layer, target.spec.all[owner])"),
    FIX.replace("all[layer] = target.spec.all[owner]", "all.update({layer: target.spec.all[owner]})"),
    f"spec = target.spec\n{FIX.replace('target.spec', 'spec')}",
    "if isinstance(spec := target.spec, Uniform):\n    spec.all[layer] = spec.all[owner]",
    FIX.replace("\n", "\n    pass\n", 1),
])  # fmt: skip
def test_an_alias_another_way_to_store_and_another_place_in_the_block_are_superseded(code: str) -> None:
    assert state(sharing(code), SHARING) == "superseded"
    assert state(sharing(code, "        target.names"), SHARING) == "superseded"
    assert state(CALLS + "".join(f"        {line}\n" for line in code.splitlines()), SHARING) == "superseded"


@pytest.mark.parametrize("text", [
    sharing(FIX, "            groups.add").replace("        if isinstance", "            if isinstance").replace("            target.spec", "                target.spec"),
    sharing(f"if False:\n    {FIX.replace(chr(10), chr(10) + '    ')}"), sharing(f"def late():\n    {FIX.replace(chr(10), chr(10) + '    ')}"),
    sharing(FIX.replace("all[owner]", "all[layer]")), sharing(f"{FIX}\n    target.spec.all.pop(layer)"),
    sharing(f"layer = target.spec\n{FIX.replace('target.spec', 'layer')}"), sharing(f"owner = target.spec\n{FIX.replace('target.spec', 'owner')}"),
    sharing(FIX.replace("isinstance", "not isinstance")), sharing(FIX + " or None"), sharing(FIX, "        target = "),
    sharing(FIX).replace("from vllm.kinds", "from other.kinds"), sharing(FIX).replace("import Uniform", "import Mamba as Uniform"),
    sharing(FIX).replace("from vllm.kinds import Uniform", "if False:\n    from vllm.kinds import Uniform"),
    sharing(FIX).replace("from vllm.kinds import Uniform\n", ""), sharing(FIX) + "\n\nUniform = int\n",
    sharing(f"spec = target.spec\nspec = None\n{FIX.replace('target.spec', 'spec')}"),
    CALLS + f"    else:\n        {FIX.replace(chr(10), chr(10) + '        ')}\n",
])  # fmt: skip
def test_a_store_that_is_not_the_fix_is_never_superseded(text: str) -> None:
    compile(text, "text", "exec")
    assert state(text, SHARING) != "superseded"


def test_without_the_known_function_there_is_nothing_to_compare_with() -> None:
    fixed = handler("except (ValueError, AssertionError):\n    return False")
    assert state(fixed, patch_of(FileEdit(PATH, (HUNK,)))) == "conflict"


def test_a_statement_that_is_only_added_may_not_be_all_of_its_block() -> None:
    stock = STOCK.replace(
        "    return merged is not None\n", "    if merged:\n        print(merged)\n    return merged\n"
    )
    rule = Rule(PATH, "plan", fixed=("specs.off = True",))
    added = replace(HUNK, old=("        print(merged)",), new=("        print(merged)", "        specs.off = 1"))
    patch = patch_of(known_edit(added, stock=stock), rules=(rule,))
    assert (
        state(stock.replace("        print(merged)\n", "        print(merged)\n        specs.off = True\n"), patch)
        == "superseded"
    )
    other = stock.replace("        print(merged)\n", "        print(merged)\n    else:\n        specs.off = True\n")
    assert state(other, patch) != "superseded"


def test_every_conflict_says_what_to_run_next() -> None:
    patch = patch_of()
    for text in (
        handler("except KeyError:\n    return False"),
        "x = 1\n",
        handler("except (AssertionError, KeyError):\n    pass"),
    ):
        result = decide_patch(patch, "0.34.0", {PATH: text.encode()}.get)
        assert (result.state, "gemmaspec patch prove p --tree DIR" in result.detail) == ("conflict", True)
    assert "gemmaspec patch prove p --tree DIR" in decide_patch(patch, "0.34.0", lambda _: None).detail
