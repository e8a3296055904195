"""Everything that a new release of vLLM asks for, in order, with one report. `make release-day RELEASE=0.34.0`.

    .venv/bin/python tools/release_day.py [RELEASE] [--profiles N] [--only STEP …] [--as-new]

Each step is a command of its own; what it ends with is a result with a word, and the next one runs all the same unless
it needs what failed. Files that a step writes are left in the checkout, to be looked at and committed. The report is
written to .tools/release-day/RELEASE, as report.md and report.json. --as-new takes a known release out of the tables
first, and says at the end whether they came out as they were.

Exit code 0: nothing is left to do but to commit; 3: somebody has to look at something; 1: a step failed; 4: something
that a step needs is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

ROOT: Final = Path(__file__).parent.parent
OUT: Final = ROOT / ".tools" / "release-day"
WATCHED: Final = (
    "gemmaspec/core/releases/data",
    "patches",
    "docs",
    "README.md",
    "tests/golden",
    "profiles/schema.json",
)
"""What steps may write."""

Outcome = Literal["done", "look", "failed", "missing", "not run"]
_BY_CODE: Final[Mapping[int, Outcome]] = {0: "done", 2: "look", 3: "look", 4: "missing", 5: "look"}
_EXIT: Final = (("failed", 1), ("missing", 4), ("look", 3), ("not run", 3))


@dataclass(frozen=True)
class Ran:
    """One command that has ended."""

    code: int
    out: str
    err: str = ""


Run = Callable[[Sequence[str]], Ran]
Says = Callable[[Ran], tuple[str, Sequence[str]]]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing to do."""

    name: str
    does: str
    commands: tuple[tuple[str, ...], ...]
    needs: tuple[str, ...] = ()
    """Steps without which it would judge the release by the tables of another."""
    says: Says | None = None
    """The word and the details, out of what the last command printed; its last line when not given."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a step."""

    step: str
    does: str
    outcome: Outcome
    word: str
    details: tuple[str, ...] = ()
    wrote: tuple[str, ...] = ()
    """Files that are not what they were before."""
    seconds: float = 0.0
    document: Any = field(default=None, repr=False)
    """What the last command printed as JSON, if it did."""


def steps(release: str, *, profiles: int, python: str, as_new: bool = False) -> tuple[Step, ...]:
    """Return every step, in order."""
    tool, command, oracle = (
        (python, "tools/release_checks.py"),
        (python, "-m", "gemmaspec"),
        (python, "tools/oracle.py"),
    )
    after = ("facts",)
    found = (
        _step("facts", "read its flags, keys, variables and names", (python, "tools/facts.py", release)),
        _step("transformers", "compare its bound", (*tool, "transformers", release), needs=after, says=_checked),
        _step("oracle", "ask its parser and configuration", (*oracle, "tables", "--cpu", release), needs=after),
        _step(
            "patches",
            "judge every patch and profile",
            (python, "tools/release_patches.py", release, "--json"),
            needs=after,
            says=_patches,
        ),
        _step("known", "record the sha256 of patched files", (*command, "patch", "known")),
        _step(
            "proof",
            "prove the patches that claim it",
            (*command, "patch", "prove", "--release", release, "--json"),
            says=_proof,
        ),
        _step(
            "lint",
            "check the shipped profiles",
            (*command, "profile", "lint", "--shipped", "--release", release, "--json"),
            needs=after,
            says=_lint,
        ),
        _step(
            "engine",
            "hold lint against the engine",
            (*oracle, "lint", "--profiles", str(profiles), release),
            needs=("facts", "oracle"),
        ),
        _step("layers", "ask each layer for its attention backend", (*oracle, "backends", release), needs=after),
        _step("failures", "look for the log texts", (*tool, "failures", release), needs=after, says=_checked),
        _step("template", "compare its chat template", (*tool, "template", release), needs=after, says=_checked),
        _step("fit", "plan the profiles' memory", (*tool, "fit", release), needs=after, says=_checked),
        _step(
            "docs",
            "write what is made from the code, and name pages written by hand",
            (python, "tools/reference.py"),
            ("make", "golden"),
            (*tool, "docs", release),
            needs=after,
            says=_checked,
        ),
    )
    if not as_new:
        return found
    first = _step("forget", "take the release out of the tables", (*tool, "forget", release), says=_checked)
    again = ("git", "diff", "--stat", "--exit-code", "--", *WATCHED)
    return first, *found, _step("as shipped", "compare what was written with what ships", again, says=_same)


def _step(
    name: str, does: str, *commands: tuple[str, ...], needs: tuple[str, ...] = (), says: Says | None = None
) -> Step:
    return Step(name=name, does=does, commands=commands, needs=needs, says=says)


def _document(ran: Ran) -> Any:
    try:
        return json.loads(ran.out)
    except ValueError:
        return None


def _checked(ran: Ran) -> tuple[str, Sequence[str]]:
    found = _document(ran)
    return (found["word"], found["details"]) if found else _last(ran)


def _patches(ran: Ran) -> tuple[str, Sequence[str]]:
    found = _document(ran)
    if found is None:
        return _last(ran)
    stops = [one["name"] for one in found["profiles"] if not one["starts"]]
    unfit = [
        f"{one['patch']}: {one['state']}; a merge is {one['rebase']['outcome']}"
        for one in found["patches"]
        if one["rebase"]
    ]
    word = f"{len(found['patches'])} patches, {len(unfit)} do not fit; {len(stops)} profiles would not start"
    return word, [*unfit, *(f"would not start: {name}" for name in stops)]


def _proof(ran: Ran) -> tuple[str, Sequence[str]]:
    found = _document(ran)
    if found is None:
        return _last(ran)
    bad = [f"{one['patch']}: {one['outcome']} {one['detail']}".rstrip() for one in found["results"] if not one["ok"]]
    return f"{len(found['results']) - len(bad)} of {len(found['results'])} patches proven", bad


def _lint(ran: Ran) -> tuple[str, Sequence[str]]:
    found = _document(ran)
    if found is None:
        return _last(ran)
    every = [one for profile in found["profiles"] for one in profile["findings"]]
    told = [f"{one['file']}:{one['line']}: {one['code']} {one['why']}" for one in every if one["severity"] == "error"]
    invalid = [f"{one['name']}: {one['invalid']}" for one in found["profiles"] if one["invalid"]]
    return f"{len(found['profiles'])} profiles, {len(every)} findings, {len(told)} errors", [*invalid, *told]


def _same(ran: Ran) -> tuple[str, Sequence[str]]:
    lines = ran.out.strip().splitlines()
    return ("not what ships", lines) if ran.code else ("everything is what ships, byte for byte", ())


def _last(ran: Ran) -> tuple[str, Sequence[str]]:
    lines = [line for line in (ran.err + "\n" + ran.out).splitlines() if line.strip()]
    return (lines[-1].strip() if lines else "it said nothing"), lines[-40:-1]


def carry_out(wanted: Iterable[Step], run: Run, digest: Callable[[], Mapping[str, str]]) -> Iterator[Result]:
    """Run steps in order. Yields one result for each, whatever happens."""
    ended: dict[str, Outcome] = {}
    for step in wanted:
        lost = [name for name in step.needs if ended.get(name, "done") in ("failed", "missing", "not run")]
        result = _not_run(step, lost) if lost else _carried_out(step, run, digest)
        ended[step.name] = result.outcome
        yield result


def _not_run(step: Step, lost: Sequence[str]) -> Result:
    return Result(step=step.name, does=step.does, outcome="not run", word=f"it needs {' and '.join(lost)}")


def _carried_out(step: Step, run: Run, digest: Callable[[], Mapping[str, str]]) -> Result:
    before, began, outcome, ran = digest(), time.monotonic(), "done", Ran(0, "")
    for command in step.commands:
        try:
            ran = run(command)
        except OSError as error:
            ran = Ran(4, "", f"{command[0]}: {error.strerror}")
        outcome = _BY_CODE.get(ran.code, "failed")
        if step.name == "as shipped" and ran.code == 1:
            outcome = "look"
        if outcome != "done":
            break
    after = digest()
    says = _last if outcome in ("failed", "missing") or step.says is None else step.says
    try:
        word, details = says(ran)
    except (KeyError, TypeError, IndexError) as error:
        outcome, (word, details) = "failed", (f"its answer cannot be read: {error}", _last(ran)[1])
    return Result(
        step=step.name,
        does=step.does,
        outcome=outcome,  # type: ignore[arg-type]
        word=word,
        details=tuple(details),
        wrote=tuple(sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))),
        seconds=round(time.monotonic() - began, 1),
        document=_document(ran),
    )


def profiles_of(results: Sequence[Result]) -> dict[str, list[str]]:
    """By shipped profile, what the release changes for it; nothing where nothing does."""
    found: dict[str, list[str]] = {}
    by_step = {one.step: one.document for one in results if isinstance(one.document, dict)}
    for one in by_step.get("patches", {}).get("profiles", ()):
        lines = found.setdefault(one["name"], [])
        lines += [] if one["starts"] else [f"would not start: {', '.join(one['blocked_by']) or 'see lint'}"]
        lines += [f"starts without {patch}" for patch in one["left_out"]]
        lines += [f"{finding['code']} {finding['severity']}: {finding['why']}" for finding in one["findings"]]
    for name, lines in by_step.get("fit", {}).get("profiles", {}).items():
        found.setdefault(name, []).extend(lines)
    return found


def exit_code(results: Sequence[Result]) -> int:
    """0 where every step is done; else that of the worst outcome."""
    return next((code for outcome, code in _EXIT if any(one.outcome == outcome for one in results)), 0)


def report(release: str, results: Sequence[Result]) -> str:
    """Return the report as Markdown."""
    lines = [f"# vLLM {release}", "", "| step | result | | seconds |", "|---|---|---|---|"]
    lines += [f"| {one.step} | {one.outcome} | {one.word.replace('|', '/')} | {one.seconds:.0f} |" for one in results]
    lines += ["", "## Profiles", ""]
    for name, changed in sorted(profiles_of(results).items()):
        lines += [
            f"- `{name}`: {'nothing changes' if not changed else ''}".rstrip(),
            *(f"  - {one}" for one in changed),
        ]
    for one in results:
        if one.details or one.wrote:
            lines += ["", f"## {one.step}: {one.does}", "", *(f"    {line}" for line in one.details)]
            lines += ["", f"Wrote {', '.join(f'`{file}`' for file in one.wrote)}."] if one.wrote else []
    return "\n".join(lines) + "\n"


def digests() -> dict[str, str]:
    """Return the files that steps may write, with their sha256."""
    found = {}
    for name in WATCHED:
        for file in (ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name]:
            if file.is_file():
                found[str(file.relative_to(ROOT))] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def run_command(command: Sequence[str]) -> Ran:
    """Run one in the checkout."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


def write(release: str, results: Sequence[Result], folder: Path) -> Path:
    """Write both forms of the report; returns the one for people."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {"schema": 1, "release": release, "exit_code": exit_code(results), "profiles": profiles_of(results)}
    whole["steps"] = [asdict(one) | {"document": None} for one in results]
    (folder / "report.json").write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
    (folder / "report.md").write_text(report(release, results))
    return folder / "report.md"


def main(words: Sequence[str]) -> int:
    """Do what is asked; returns the exit code."""
    parser = argparse.ArgumentParser(prog="release_day.py")
    parser.add_argument("release", help="as 0.34.0")
    parser.add_argument("--profiles", type=int, default=100, help="random profiles that lint and the engine judge")
    parser.add_argument("--only", nargs="+", default=[], metavar="STEP", help="these steps alone")
    parser.add_argument("--as-new", action="store_true", help="take it out of the tables first")
    options = parser.parse_args(words)
    wanted = steps(options.release, profiles=options.profiles, python=sys.executable, as_new=options.as_new)
    if unknown := set(options.only) - {one.name for one in wanted}:
        parser.error(
            f"there is no step {', '.join(sorted(unknown))}; there are {', '.join(one.name for one in wanted)}"
        )
    wanted = tuple(one for one in wanted if not options.only or one.name in options.only)
    results = []
    for result in carry_out(wanted, run_command, digests):
        results.append(result)
        print(f"{result.step:<13}{result.outcome:<8} {result.seconds:6.0f} s  {result.word}", flush=True)
        write(options.release, results, OUT / options.release)
    print(f"wrote {OUT / options.release / 'report.md'} and report.json")
    return exit_code(results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
