"""How the package reads: thermometers with a tenth of slack, and no gate at which a mend has to pay."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support import house
from tests.support.house import FILES, PACKAGE
from tests.support.sources import nodes_of

BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "files with two or more subjects": (5, 5),
    "statements over 60 nodes per 1,000 lines": (0.5, 0.5),
    "of these, no record of one short row a line": (0.2, 0.2),
    "comprehensions per 1,000 lines": (34.5, 20),
    "conditional expressions per 1,000 lines": (16, 15),
    "nested conditional expressions": (0, 0),
    "the walk of up": (205, 140),
    "the walk of bench": (36, 36),
    "the walk of predict": (70, 50),
}
"""What → the bound (what it was when it was last lowered, and a tenth), and the goal. A bound is lowered, never raised."""


def _per_thousand(count: int) -> float:
    return 1000 * count / sum(house.lines_of(file) for file in FILES)


def _walk(file: str, name: str) -> float:
    walk = house.Walk()
    walk.follow(PACKAGE / file, name)
    return len(walk.stays)


def _nodes(kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> int:
    return sum(isinstance(node, kind) for file in FILES for node in nodes_of(file))


MEASURES: Final[Mapping[str, Callable[[], float]]] = {
    "files with two or more subjects": lambda: sum(len(house.islands(file)) > 1 for file in FILES),
    "statements over 60 nodes per 1,000 lines": lambda: _per_thousand(sum(len(house.dense(file)) for file in FILES)),
    "of these, no record of one short row a line": lambda: _per_thousand(sum(len(house.crowded(f)) for f in FILES)),
    "comprehensions per 1,000 lines": lambda: _per_thousand(_nodes(house.COMPREHENSIONS)),
    "conditional expressions per 1,000 lines": lambda: _per_thousand(_nodes(ast.IfExp)),
    "nested conditional expressions": lambda: sum(len(house.nested(file)) for file in FILES),
    "the walk of up": lambda: _walk("serve/up.py", "up"),
    "the walk of bench": lambda: _walk("measure/servers/bench.py", "bench"),
    "the walk of predict": lambda: _walk("check/use_cases/predict.py", "predict_profile"),
}


@pytest.mark.parametrize("what", BOUNDS)
def test_the_package_reads_no_worse_than_it_did(what: str) -> None:
    bound, goal = BOUNDS[what]
    found = MEASURES[what]()
    assert 0 < found <= bound or found <= goal, f"{found:g} {what}, and {bound:g} is the bound ({goal=:g})"


def test_every_measure_has_a_bound_above_its_goal() -> None:
    assert MEASURES.keys() == BOUNDS.keys()
    assert all(bound >= goal for bound, goal in BOUNDS.values())


TWO_SUBJECTS: Final = "def first() -> int:\n    return _step()\n\n\ndef _step() -> int:\n{body}    return 1\n\n\ndef second() -> int:\n{body}    return 2\n"


def test_two_subjects_in_one_file_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "glued.py"
    body = "".join(f"    a{number} = {number}\n" for number in range(50))
    file.write_text(TWO_SUBJECTS.format(body=body))
    assert sorted(map(sorted, house.islands(file))) == [["_step", "first"], ["second"]]
    joined = tmp_path / "joined.py"
    joined.write_text(file.read_text().replace("return 2", "return first()"))
    assert [sorted(names) for names in house.islands(joined)] == [["_step", "first", "second"]]
    short = tmp_path / "short.py"
    short.write_text(TWO_SUBJECTS.format(body=""))
    assert house.islands(short) == []


def test_dense_and_nested_statements_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "dense.py"
    file.write_text(
        f"a = sum({', '.join(f'b{number} + 1' for number in range(20))})\nc = 1 if a else 2\nd = 1 if a else 2 if c else 3\n"
    )
    assert [node.lineno for node in house.dense(file)] == [1]
    assert [node.lineno for node in house.nested(file)] == [3]


def test_what_a_record_hands_on_and_a_table_at_the_top_are_data(tmp_path: Path) -> None:
    texts = {
        "handed on": f"a = Record({', '.join(f'f{number}=one.part.f{number}' for number in range(20))})\n",
        "computed": f"a = Record({', '.join(f'f{number}=one.part + {number}' for number in range(20))})\n",
        "table": f"A = {{{', '.join(f'{number}: Row(at={number} + 1)' for number in range(20))}}}\n",
    }
    texts["the same in a function"] = f"def f() -> None:\n    {texts['table']}"
    texts["a table with a dense row"] = f"A = {{1: [{', '.join(f'b + {number}' for number in range(20))}]}}\n"
    found = {}
    for name, text in texts.items():
        file = tmp_path / f"{name.replace(' ', '-')}.py"
        file.write_text(text)
        found[name] = len(house.dense(file))
    assert found == {
        "handed on": 0, "computed": 1, "table": 0, "the same in a function": 1, "a table with a dense row": 1
    }  # fmt: skip


def test_a_record_of_one_short_row_a_line_is_not_crowded(tmp_path: Path) -> None:
    rows = "".join(f"    field{number}=value.part + {number},\n" for number in range(20))
    long_row = "    more=[one.a + one.b for one in all_of(value) if one.a and one.b],\n"
    texts = {"record": f"a = Record(\n{rows})\n", "long": f"a = Record(\n{rows}{long_row})\n", "folded": ""}
    texts["folded"] = texts["record"].replace("\n", " ")
    found = {}
    for name, text in texts.items():
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        assert len(house.dense(file)) == 1
        found[name] = len(house.crowded(file))
    assert found == {"record": 0, "long": 1, "folded": 1}


def test_a_walk_reads_each_function_once_where_it_is_called_first() -> None:
    walk = house.Walk()
    walk.follow(PACKAGE / "core" / "redact.py", "redact")
    assert {file for file, _ in walk.read} == set(walk.stays)
    before = len(walk.read)
    walk.follow(PACKAGE / "core" / "redact.py", "redact")
    assert len(walk.read) == before > 0
