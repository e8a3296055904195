"""The day of a release: its steps in order, each with a result; what runs them and what they run are fakes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import release_checks as checks
import release_day as day

from gemmaspec.core.releases.facts import facts_for

TOOLS = Path(__file__).parent.parent.parent / "tools"

ORDER = ["facts", "transformers", "oracle", "patches", "known", "proof", "lint", "engine"]
ORDER += ["layers", "failures", "template", "fit", "docs"]
FINDING = {"severity": "error", "file": "profiles/one.yaml", "line": 7, "code": "GS101", "why": "the flag is gone"}
ANSWERS: dict[str, object] = {
    "release_patches.py": {
        "patches": [
            {"patch": "good", "state": "applies", "rebase": None},
            {"patch": "bad", "state": "conflict", "rebase": {"outcome": "clean"}},
        ],
        "profiles": [
            {"name": "one", "starts": False, "blocked_by": ["bad"], "left_out": [], "findings": [FINDING]},
            {"name": "two", "starts": True, "blocked_by": [], "left_out": [], "findings": []},
        ],
    },
    "prove": {"results": [{"patch": "good", "outcome": "proven", "detail": "", "ok": True}]},
    "lint": {"profiles": [{"name": "one", "invalid": None, "findings": [FINDING]}]},
    "fit": {"word": "2 profiles", "details": [], "profiles": {"two": ["sequences: 256 becomes 1024"]}},
}


class Fake:
    """Runs nothing; remembers commands, and answers with the codes that it was given."""

    def __init__(self, **codes: int) -> None:
        self.codes = codes
        self.ran: list[Sequence[str]] = []
        self.written = 0

    def run(self, command: Sequence[str]) -> day.Ran:
        self.ran.append(command)
        name = next(
            (
                word
                for word in ("release_patches.py", "prove", "fit", "facts.py", "oracle.py")
                if word in " ".join(command)
            ),
            "",
        )
        if "profile" in command:
            name = "lint"
        self.written += name == "facts.py"
        code = self.codes.get(name.removesuffix(".py").replace("-", "_"), 0)
        plain = {"word": "as it was", "details": []} if "release_checks.py" in " ".join(command) else None
        answer = ANSWERS.get(name, plain)
        return day.Ran(code, json.dumps(answer) if answer else "first\nthe last word\n")

    def digest(self) -> dict[str, str]:
        return {"gemmaspec/core/releases/data/flags.json": str(self.written), "README.md": "same"}


def results(fake: Fake, **more: bool) -> list[day.Result]:
    wanted = day.steps("9.9.9", profiles=3, python="python", **more)
    return list(day.carry_out(wanted, fake.run, fake.digest))


def test_every_step_runs_in_order_and_has_a_result() -> None:
    fake = Fake()
    found = results(fake)
    assert [one.step for one in found] == ORDER
    assert {one.outcome for one in found} == {"done"}
    assert all("9.9.9" in command or set(command) & {"known", "tools/reference.py", "golden"} for command in fake.ran)
    assert found[0].wrote == ("gemmaspec/core/releases/data/flags.json",)
    assert not any(one.wrote for one in found[1:])
    assert day.exit_code(found) == 0


def test_a_step_that_fails_is_a_result_and_what_needs_it_is_said_not_to_have_run() -> None:
    fake = Fake(facts=1)
    found = {one.step: one for one in results(fake)}
    assert (found["facts"].outcome, found["facts"].word) == ("failed", "the last word")
    assert (found["lint"].outcome, found["lint"].word) == ("not run", "it needs facts")
    assert (found["engine"].outcome, found["engine"].word) == ("not run", "it needs facts and oracle")
    assert found["proof"].outcome == "done"
    assert set(found) == set(ORDER)
    assert day.exit_code(list(found.values())) == 1


@pytest.mark.parametrize(
    ("codes", "outcome", "code"),
    [
        ({"oracle": 3}, "look", 3),
        ({"oracle": 4}, "missing", 4),
        ({"release_patches": 5}, "look", 3),
        ({"prove": 9}, "failed", 1),
    ],
)
def test_a_step_s_exit_code_says_what_it_comes_to(codes: dict[str, int], outcome: str, code: int) -> None:
    found = results(Fake(**codes))
    assert outcome in {one.outcome for one in found}
    assert day.exit_code(found) == code


def test_a_command_that_is_not_there_is_missing_and_an_answer_that_is_none_has_failed() -> None:
    def run(command: Sequence[str]) -> day.Ran:
        if "known" in command:
            raise FileNotFoundError(2, "No such file or directory")
        return day.Ran(0, '{"profiles": 3}')

    found = {one.step: one for one in day.carry_out(day.steps("9.9.9", profiles=3, python="p"), run, dict)}
    assert (found["known"].outcome, found["known"].word) == ("missing", "p: No such file or directory")
    assert (found["lint"].outcome, found["template"].outcome) == ("failed", "failed")
    assert "cannot be read" in found["lint"].word


def test_the_report_says_what_changes_for_each_profile(tmp_path: Path) -> None:
    found = results(Fake(release_patches=5, lint=2))
    file = day.write("9.9.9", found, tmp_path / "new")
    text, whole = file.read_text(), json.loads((file.parent / "report.json").read_text())
    assert "would not start: bad" in text
    assert "| patches | look | 2 patches, 1 do not fit; 1 profiles would not start |" in text
    assert whole["profiles"]["one"] == ["would not start: bad", "GS101 error: the flag is gone"]
    assert whole["profiles"]["two"] == ["sequences: 256 becomes 1024"]
    assert [one["step"] for one in whole["steps"]] == ORDER
    assert whole["exit_code"] == 3


def test_as_if_it_were_new_it_is_forgotten_first_and_compared_last() -> None:
    found = results(Fake(), as_new=True)
    assert [one.step for one in found] == ["forget", *ORDER, "as shipped"]
    assert found[-1].word == "everything is what ships, byte for byte"


def test_texts_of_a_pattern_are_found_in_sources_that_break_them(tmp_path: Path) -> None:
    pattern = r"(?:error: )?max_num_tokens \(\d+\) must be greater(?: than zero please| or equal to something)"
    wanted = ["max_num_tokens (", ") must be greater", "or equal to something", "than zero please"]
    assert checks.fragments(pattern) == sorted(wanted)
    (tmp_path / "a.py").write_text(
        'raise ValueError(\n    f"({n}) must be"\n    f" greater than zero"\n    " please"\n)\n'
    )
    text = checks.source_text(tmp_path)
    assert [one in text for one in (") must be greater", "than zero please", "max_num_tokens (")] == [True, True, False]


def test_a_release_without_a_row_for_transformers_is_looked_at() -> None:
    assert not checks.transformers("0.33.0").look
    assert "no row for it" in checks.transformers("0.18.0").word
    facts = facts_for("0.33.0")
    assert facts
    without = checks.transformers_within(facts.transformers_declared, None)
    assert (without.look, "add one to gemmaspec/core/releases/drafting.yaml" in without.word) == (True, True)
    found = checks.transformers_within(facts.transformers_declared, ">=5.5.0,<5.30")
    assert found.details == ["outside of it: transformers 5.5.0", "outside of it: transformers 5.29.0"]


def test_pages_by_hand_that_do_not_name_it_are_named() -> None:
    assert not checks.docs("0.33.0").look
    assert len(checks.docs("9.9.9").details) == len(checks.PAGES)
