"""Write the generated parts of README.md and docs/ (`make reference`).

    .venv/bin/python tools/reference.py            # write them again
    .venv/bin/python tools/reference.py --check    # name the files that are out of date; exit code 1 if any is

A part is between `<!-- NAME: made from the code -->` and `<!-- end -->`. PARTS lists the names.
"""

from __future__ import annotations

import html
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer.main

sys.path.insert(0, str(Path(__file__).parent))

import accuracy

from gemmaspec import data, errors
from gemmaspec.cli.app import app
from gemmaspec.deploy.offer import FIRST
from gemmaspec.lint.check import CODES
from gemmaspec.patching.bugs import bugs
from gemmaspec.patching.patch import Patch, Shelf, Upstream
from gemmaspec.profile.find import profile_names
from gemmaspec.profile.load import load_profile
from gemmaspec.profile.model import Measured, Profile
from gemmaspec.profile.schema import profile_schema
from gemmaspec.ready.known_failures import KILLED, known_failures
from gemmaspec.ready.phases import MARKS
from gemmaspec.releases.facts import releases
from gemmaspec.smoke.catalogue import CHECKS
from gemmaspec.smoke.known_issues import KNOWN

ROOT: Final = Path(__file__).parent.parent
_PART: Final = re.compile(r"(<!-- ([a-z-]+): made from the code -->\n).*?(<!-- end -->)", re.DOTALL)


def main(arguments: list[str]) -> int:
    """Write or check; return the exit code."""
    stale = [(file, made) for file in documents() if (made := with_parts(text := file.read_text())) != text]
    if "--check" in arguments:
        for file, _ in stale:
            print(f"{file.relative_to(ROOT)} is out of date; run: make reference", file=sys.stderr)
        return 1 if stale else 0
    for file, made in stale:
        file.write_text(made)
        print(file.relative_to(ROOT))
    return 0


def documents() -> list[Path]:
    """Return the files that may contain a generated part."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def with_parts(text: str) -> str:
    """Return `text` with its parts generated again. Raise KeyError for an unknown name."""
    return _PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]().strip()}\n\n{found[3]}", text)


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table."""
    lines = [list(head), *([_cell(cell) for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: object) -> str:
    """Return text in code marks; empty text stays empty.

    Text with a bar becomes HTML, because a bar would end a table's cell and not every renderer supports escaping it.
    """
    if "|" in str(text):
        return (
            f"<code>{html.escape(str(text)).replace('|', '&#124;').replace('*', '&#42;').replace('_', '&#95;')}</code>"
        )
    return f"`{text}`" if text not in (None, "") else ""


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


# Commands


def commands() -> str:
    """Return every command with its arguments and options."""
    return "\n\n".join(_command(path, command) for path, command in _leaves("gemmaspec", typer.main.get_command(app)))


def _leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command without subcommands, by its full name, in the order of the help text."""
    if not (inner := getattr(command, "commands", None)):
        yield path, command
        return
    for name, one in inner.items():
        if not one.hidden:
            yield from _leaves(f"{path} {name}", one)


def _command(path: str, command: Any) -> str:
    shown = [parameter for parameter in command.params if not parameter.hidden]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    usage = " ".join(
        [path, *(_usage(one) for one in arguments), *(["[OPTIONS]"] if len(shown) > len(arguments) else [])]
    )
    rows = [(code(_written(one)), _explained(one)) for one in shown]
    parts = [
        f"## {path}",
        inspect.cleandoc(command.help or ""),
        f"```text\n{usage}\n```",
        table(("argument or option", "meaning"), rows) if rows else "",
        f"```text\n{_examples(command.epilog)}\n```" if command.epilog else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _examples(epilog: str) -> str:
    """Return the examples without the marker that keeps click from rewrapping them."""
    return inspect.cleandoc(epilog.replace("\b", ""))


def _usage(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()).strip("[]{}")
    several = "…" if argument.nargs == -1 else ""
    return f"{name}{several}" if argument.required else f"[{name}{several}]"


def _written(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _usage(parameter)
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return names if parameter.is_flag or not parameter.metavar else f"{names} {parameter.metavar}"


def _explained(parameter: Any) -> str:
    text = str(parameter.help or "")
    default = parameter.default
    plain = isinstance(default, int | float | str) and not isinstance(default, bool) and default != ""
    return f"{text} Default: `{default}`." if plain and parameter.param_type_name == "option" else text


# Profiles


def profile_keys() -> str:
    """Return every key of a profile file, section by section."""
    properties = profile_schema()["properties"]
    plain = {key: one for key, one in properties.items() if not _fields(one)}
    sections = [f"## At the top\n\n{_keys(plain)}"]
    for key, one in properties.items():
        if fields := _fields(one):
            sections.append(f"## {key}\n\n{one.get('description', '')}\n\n{_keys(fields)}")
    return "\n\n".join(sections)


def _fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys below a key: of a map, or of each item of a list."""
    for one in (schema, *schema.get("anyOf", ()), schema.get("items") or {}):
        if one.get("properties"):
            return dict(one["properties"])
    return {}


def _keys(fields: Mapping[str, Any]) -> str:
    rows = [(code(key), _kind(one), code(_default(one)), one.get("description", "")) for key, one in fields.items()]
    return table(("key", "value", "default", "meaning"), rows)


def _default(schema: Mapping[str, Any]) -> str:
    default = schema.get("default")
    if default in (None, [], {}):
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)


def _kind(schema: Mapping[str, Any]) -> str:
    """Return the allowed values of a key in words."""
    if values := [value for value in schema.get("enum", ()) if value is not None]:
        return ", ".join(code(value) for value in values)
    if "const" in schema:
        return code(schema["const"])
    kinds = schema.get("type") or [_kind(one) for one in schema.get("anyOf", ())]
    words = [_WORDS.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    return " or ".join(word for word in dict.fromkeys(words) if word and word != "null") + _bounds(schema)


_WORDS: Final = {
    "string": "text",
    "integer": "whole number",
    "array": "list",
    "object": "map",
    "boolean": "`true`, `false`",
}


def _bounds(schema: Mapping[str, Any]) -> str:
    words = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign} {schema[key]}" for key, sign in words.items() if key in schema]
    return f" {', '.join(found)}" if found else ""


def shipped_profiles() -> str:
    """Return the shipped profiles with their published figures."""
    profiles = [load_profile(str(file)).profile for file in profile_names([data.PROFILES]).values()]
    rows = [(code(one.name), one.machine, one.target.model, _draft(one), *_published(one)) for one in profiles]
    return table(("profile", "machine", "target", "draft", "tokens/s", "source"), rows)


def profiles_in_short() -> str:
    """Return the shipped profiles that have published figures, one line each, for README.md.

    A whole model as the draft is left out: a head was faster wherever both have figures.
    """
    every = [load_profile(str(file)).profile for file in profile_names([data.PROFILES]).values()]
    heads = (one for one in every if not (one.speculative and one.speculative.method == "draft_model"))
    profiles = [one for one in heads if any(_figure(figure) for figure in one.measured)]
    profiles.sort(key=lambda one: one.name != FIRST)
    rows = [(_first(one.name), one.summary, *_published(one)) for one in profiles]
    return table(("profile", "what it serves", "tokens/s", "source"), rows)


def _first(name: str) -> str:
    return f"**{code(name)}**, to take first" if name == FIRST else code(name)


def _draft(profile: Profile) -> str:
    spec = profile.speculative
    if not spec:
        return "none"
    model = profile.draft.model if profile.draft else spec.method
    return f"{model}, {spec.num_speculative_tokens} tokens" if spec.num_speculative_tokens else str(model)


def _published(profile: Profile) -> tuple[str, str]:
    figures = "; ".join(text for one in profile.measured if (text := _figure(one)))
    sources = dict.fromkeys(
        one.source if "not" in one.date else f"{one.source}, {one.date}" for one in profile.measured
    )
    return figures or "none", "; ".join(sources)


def _figure(one: Measured) -> str:
    other = " and ".join(text for text in (one.target, one.draft) if text)
    return _plain(one) + (f" [with {other}]" if other and one.tokens_per_second else "")


def _plain(one: Measured) -> str:
    if one.tokens_per_second is None:
        return f"{one.speedup} times no speculation, as claimed" if one.speedup else ""
    without = f" ({one.baseline:g} without)" if one.baseline else ""
    return f"{one.tokens_per_second:g}{without}" + (f" for {one.concurrency} requests" if one.concurrency > 1 else "")


# Lint, patches, failures


def lint_codes() -> str:
    """Return every rule of lint, linked to its section."""
    rows = [
        (f"[{rule.code}](#{rule.code.lower()})", rule.severity, inspect.getdoc(rule.check) or "")
        for rule in sorted(CODES.values(), key=lambda one: one.code)
    ]
    return table(("code", "severity", "what it checks"), rows)


def patches() -> str:
    """Return every shipped patch: the bug, the releases, and who needs it."""
    return "\n\n".join(_patch(one) for one in Shelf((data.PATCHES,)).values())


def _patch(patch: Patch) -> str:
    text = patch.text
    facts = {
        "vLLM": "; ".join(code(one.versions) for one in text.variants),
        "methods": ", ".join(code(method) for method in text.required_by.methods),
        "needed when": text.required_by.when,
        "model runner": text.runner,
        "error without it": "; ".join(code(one) for one in text.errors),
        "upstream": "; ".join(_thread(one) for one in text.upstream),
        "drop it when": text.drop_when,
    }
    lines = "\n".join(f"- **{name}**: {value}" for name, value in facts.items() if value)
    return f"## {patch.id}\n\n{text.title}.\n\n{' '.join(text.hole.split())}\n\n{lines}"


def _thread(one: Upstream) -> str:
    return f"[{one.url.partition('.com/')[2]}]({one.url}) ({one.state}, {one.seen})"


def failures() -> str:
    """Return every known failure of a start."""
    rows = [
        (code(one.finding.code), one.finding.message, one.finding.fix, one.exit_code)
        for one in (*known_failures(), KILLED)
    ]
    return table(("failure", "what it is", "what to do", "exit code"), rows)


def failure_texts() -> str:
    """Return the pattern of each known failure."""
    return table(
        ("failure", "the log has"), [(code(one.finding.code), code(one.pattern.pattern)) for one in known_failures()]
    )


def bugs_of_vllm() -> str:
    """Return the bugs of vLLM that have a patch: the log's text, the cause and the fix."""
    link = "[`{0}`]({1}#{0})"
    rows = [
        (" or ".join(map(_quoted, bug.errors)), bug.symptom, f"{bug.fix()} {link.format(bug.patch, _PATCHES_PAGE)}")
        for bug in bugs((data.PATCHES,))
    ]
    return table(("the log says", "what it is", "what to do"), rows)


def _quoted(error: str) -> str:
    return f"`` {error} ``" if "`" in error else code(error)


_PATCHES_PAGE: Final = "../reference/patches.md"


def smoke_checks() -> str:
    """Return the checks of `smoke`: what each needs, and what a failure does."""
    rows = [
        (one.id, one.name, ", ".join(sorted(need.name.lower() for need in one.needs)) or "-",
         "fails" if one.counts else "warns", one.fix)
        for one in CHECKS
    ]  # fmt: skip
    return table(("check", "what is right", "needs", "otherwise it", "what to do"), rows)


def smoke_issues() -> str:
    """Return the issues of vLLM that the checks show."""
    rows = [
        (id_, f"[#{one.number}]({one.url})", one.title, one.state, one.seen_in or "", one.fixed_in or "not known",
         one.source)
        for id_, known in KNOWN.items()
        for one in known
    ]  # fmt: skip
    return table(("check", "vLLM", "what", "state", "seen in", "fixed in", "by"), rows)


def phases() -> str:
    """Return the log line that begins each phase, and its origin."""
    rows = [(mark.phase, code(mark.pattern.pattern), mark.source, mark.releases) for mark in MARKS]
    return table(("phase", "begins with a line that matches", "printed by", "vLLM"), rows)


def exit_codes() -> str:
    """Return the exit codes from the tree in errors.py's docstring."""
    found: dict[str, list[str]] = {"0": ["success"]}
    for name, number, text in _ERROR.findall(errors.__doc__ or ""):
        assert getattr(errors, name).exit_code == int(number), f"errors.py lists another exit code for {name}"
        found.setdefault(number, []).append(text)
    return table(("code", "meaning"), [(number, "; ".join(texts)) for number, texts in found.items()])


_ERROR: Final = re.compile(r"^(?:[├└]─ )?(\w+) +(\d+)  (.+)$", re.MULTILINE)

_FRESH: Final = 2
"""How many releases a measurement may be behind before it is stale."""


def measured_machines() -> str:
    """Return what was measured, a row for each file, method and number of drafts, for one request at once."""
    known = releases()
    rows = []
    for file in sorted(data.MEASUREMENTS.glob("*.json"), reverse=True):
        found = json.loads(file.read_text())
        alone = [row for row in found["rows"] if row["concurrency"] == 1 and row["context"] == 256]
        for row in alone:
            behind = len(known) - 1 - known.index(row["vllm"]) if row.get("vllm") in known else None
            state = "author" if behind is not None and behind <= _FRESH else "author, stale"
            patches = ", ".join(row.get("patches") or ()) or "none"
            by = "synthetic" if row.get("acceptance_by") == "synthetic" else "measured"
            drafts = (row["method"], row["k"], by if row["k"] else "")
            facts = (code(row.get("compile", "")), patches, found["date"], state)
            rows.append((found["machine"], row.get("vllm", ""), *drafts, f"{row['tokens_per_second']:.1f}", *facts))
    head = (
        "machine",
        "vLLM",
        "method",
        "k",
        "acceptance",
        "tokens/s",
        "compiled",
        "patches for speed",
        "date",
        "state",
    )
    return table(head, dict.fromkeys(rows))


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "commands": commands,
    "profile-keys": profile_keys,
    "shipped-profiles": shipped_profiles,
    "profiles-in-short": profiles_in_short,
    "lint-codes": lint_codes,
    "patches": patches,
    "failures": failures,
    "failure-texts": failure_texts,
    "bugs": bugs_of_vllm,
    "smoke-checks": smoke_checks,
    "smoke-issues": smoke_issues,
    "phases": phases,
    "exit-codes": exit_codes,
    "measured-machines": measured_machines,
    **accuracy.PARTS,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
