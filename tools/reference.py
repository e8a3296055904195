"""Write the generated parts of README.md and docs/ (`make reference`).

    .venv/bin/python tools/reference.py            # write them again
    .venv/bin/python tools/reference.py --check    # name the files that are out of date; exit code 1 if any is

A part is between `<!-- NAME: made from the code -->` and `<!-- end -->`. PARTS lists the names. What a command prints
is between `<!-- run N: COMMAND -->` and `<!-- end -->`: its first N lines, without a network, state or GPU. SITE lists
the parts that only the built site holds (site_docs.py).
"""

from __future__ import annotations

import functools
import html
import inspect
import itertools
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer.main

sys.path.insert(0, str(Path(__file__).parent))

import accuracy
import card_table
import headline

from gemmaspec.check.inspect.meaning import meanings
from gemmaspec.cli.app import app
from gemmaspec.cli.help import PATCH_SECTIONS
from gemmaspec.core import data, errors
from gemmaspec.core.patching.bugs import bugs
from gemmaspec.core.patching.hashes import KNOWN_FILE
from gemmaspec.core.patching.patch import Patch, Shelf, Upstream
from gemmaspec.core.profile.find import profile_names
from gemmaspec.core.profile.load import load_profile
from gemmaspec.core.profile.model import Measured, Profile
from gemmaspec.core.profile.schema import profile_schema
from gemmaspec.core.releases.facts import releases
from gemmaspec.core.server_state import MEANINGS
from gemmaspec.measure.smoke.catalogue import CHECKS
from gemmaspec.measure.smoke.known_issues import KNOWN
from gemmaspec.run.ready.known_failures import KILLED, KnownFailure, known_failures

ROOT: Final = Path(__file__).parent.parent
_PART: Final = re.compile(r"(<!-- ([a-z-]+): made from the code -->\n).*?(<!-- end -->)", re.DOTALL)
_RUN: Final = re.compile(r"(<!-- run (\d+): (gemmaspec [^\n]+) -->\n).*?(<!-- end -->)", re.DOTALL)


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
    made = _PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]().strip()}\n\n{found[3]}", text)
    return _RUN.sub(lambda found: f"{found[1]}\n{printed(found[3], int(found[2]))}\n\n{found[4]}", made)


@functools.cache
def printed(command: str, most: int) -> str:
    """Return a command and the first lines that it prints on a machine that has nothing yet."""
    with tempfile.TemporaryDirectory() as home:
        clean = {"PATH": os.environ["PATH"], "HOME": home, "GEMMASPEC_STATE": f"{home}/state", "HF_HUB_OFFLINE": "1"}
        words = [sys.executable, "-m", *shlex.split(command)]
        environment = {**clean, "COLUMNS": "88", "NO_COLOR": "1", "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment, cwd=home)
    lines = done.stdout.rstrip().splitlines()
    return "\n".join(["```console", f"$ {command}", *lines[:most], *(["…"] if len(lines) > most else []), "```"])


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
    """Return the options that several commands share, then every command with its own."""
    every = list(_leaves("gemmaspec", typer.main.get_command(app)))
    often = Counter(_bullet(one) for _, command in every for one in _shown(command))
    shared = {line: one for _, command in every for one in _shown(command) if often[line := _bullet(one)] >= _SHARED}
    head = "## Options that several commands have\n\n" + "\n".join(sorted(shared, key=str.lower))
    return "\n\n".join([head, *(_command(path, command, shared) for path, command in every)])


_MAINTAINERS: Final = "For maintainers of patches"
_SHARED: Final = 2
"""An argument or option that this many commands explain in the same words is explained once."""


def _shown(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if not parameter.hidden]


def _bullet(parameter: Any) -> str:
    return f"- {code(_written(parameter))}: {_explained(parameter)}"


def _leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command without subcommands, by its full name, in the order of the help text."""
    if not (inner := getattr(command, "commands", None)):
        yield path, command
        return
    for name, one in inner.items():
        if not one.hidden:
            yield from _leaves(f"{path} {name}", one)


def _command(path: str, command: Any, shared: Mapping[str, Any]) -> str:
    shown = _shown(command)
    if path.partition("gemmaspec patch ")[2] in PATCH_SECTIONS[_MAINTAINERS]:
        shown = [one for one in shown if one.param_type_name == "argument"]  # --help has the options
    arguments = [one for one in shown if one.param_type_name == "argument"]
    own = [line for one in shown if (line := _bullet(one)) not in shared]
    also = [code(_short(one)) for one in shown if _bullet(one) in shared and one not in arguments]
    usage = " ".join([path, *map(_usage, arguments), *(["[OPTIONS]"] if len(shown) > len(arguments) else [])])
    parts = [
        f"## {path}",
        inspect.cleandoc(command.help or ""),
        f"```text\n{_examples(command.epilog) or usage}\n```",
        "\n".join(own),
        f"Also {', '.join(also)}." if also else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _short(parameter: Any) -> str:
    return max(parameter.opts, key=len)


def _examples(epilog: str | None) -> str:
    """Return the examples alone, without the marker that keeps click from rewrapping them."""
    lines = inspect.cleandoc((epilog or "").replace("\b", "")).splitlines()
    return "\n".join(line.strip() for line in lines if line.startswith(" "))


def _usage(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()).strip("[]{}.…")
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
    return "\n".join(_key(key, one) for key, one in fields.items())


def _key(key: str, schema: Mapping[str, Any]) -> str:
    kind = "" if _kind(schema) == "text" else _kind(schema)
    facts = ", ".join(part for part in (kind, f"default {code(_default(schema))}" if _default(schema) else "") if part)
    return " ".join(f"- {code(key)}{f' ({facts})' if facts else ''}: {schema.get('description', '')}".split())


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
    "integer": "number",
    "array": "list",
    "object": "map",
    "boolean": "`true`/`false`",
}


_NO_BOUND: Final = 2**31 - 1


def _bounds(schema: Mapping[str, Any]) -> str:
    words = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign}{schema[key]}" for key, sign in words.items() if schema.get(key, _NO_BOUND) < _NO_BOUND]
    return f" {' '.join(found)}" if found else ""


def shipped_profiles() -> str:
    """Return the shipped profiles with their published figures; what a reader looks for stands first."""
    rows = [
        (code(one.name), _published(one), _run_here(one), f"{one.target.model}; draft: {_draft(one)}", _sources(one))
        for one in _shipped()
    ]
    head = ("profile", "published tokens/s", "run here", "target and draft", "source")
    return table(head, rows)


_TINY: Final = "real, on a CPU"
_DUMMY: Final = "dummy weights, on an H200"
RUN_HERE: Final[Mapping[str, str]] = {
    "nvidia-26b-a4b-mtp": "dummy weights, on an H100",
    "nvidia-31b-mtp": "dummy weights, on an H100",
    "spark-31b": _DUMMY,
    "spark-31b-dspark": _DUMMY,
    "spark-31b-e2b": _DUMMY,
    "spark-31b-eagle3": _DUMMY,
    "spark-31b-mtp": _DUMMY,
    "tiny-cpu": _TINY,
    "tiny-cpu-eagle3": _TINY,
    "tiny-cpu-mtp": _TINY,
    "tiny-cpu-ngram": _TINY,
}
"""What this project has run: real weights; the shapes of target and draft, filled with dummy weights; else nothing."""


def _shipped() -> list[Profile]:
    return [load_profile(str(file)).profile for file in profile_names([data.PROFILES]).values()]


def _run_here(profile: Profile) -> str:
    return RUN_HERE.get(profile.name, "no")


def _draft(profile: Profile) -> str:
    spec = profile.speculative
    if not spec:
        return "none"
    model = profile.draft.model if profile.draft else spec.method
    return f"{model}, {spec.num_speculative_tokens} tokens" if spec.num_speculative_tokens else str(model)


def _published(profile: Profile) -> str:
    """Return the figures of the profile's own target and draft in bold, then those of others with their names."""
    own = [_figure(one, profile) for one in profile.measured if not (one.target or one.draft)]
    others = (_figure(one, profile) for one in profile.measured if one.target or one.draft)
    return "; ".join([*(f"**{text}**" for text in own if text), *filter(None, others)])


def _sources(profile: Profile) -> str:
    sources = (one.source if "not" in one.date else f"{one.source}, {one.date}" for one in profile.measured)
    return "; ".join(dict.fromkeys(sources))


def _figure(one: Measured, profile: Profile) -> str:
    if one.tokens_per_second is None:
        return f"{one.speedup} times no speculation, as claimed" if one.speedup else ""
    without = f" ({one.baseline:g} without)" if one.baseline and profile.speculative else ""
    many = f" for {one.concurrency} requests" if one.concurrency > 1 else ""
    other = " and ".join(text for text in (one.target, one.draft) if text)
    return f"{one.tokens_per_second:g}{without}{many}" + (f" with {other}" if other else "")


# Lint, patches, failures


def lint_codes() -> str:
    """Return the section of every lint code, with the links of a page in docs/reference/."""
    _, _, sections = data.LINT_CODES.read_text(encoding="utf-8").partition("\n## ")
    return f"## {sections}".replace("](../../../docs/", "](../")


def formats() -> str:
    """Return what the files of a stack hold, as sections of a page."""
    _, _, sections = data.FORMATS.read_text(encoding="utf-8").partition("\n### ")
    return f"## {sections}".replace("\n### ", "\n## ")


def patches() -> str:
    """Return every shipped patch: the bug, the releases, and who needs it."""
    return "\n\n".join(_patch(one) for one in Shelf((data.PATCHES,)).values())


def patch_matrix() -> str:
    """Return a table in HTML of the patches and the releases of vLLM that they were made for, by known.json.

    Releases next to each other that have the same patches share a column, the newest first.
    """
    fits = {one.id: _releases_of(one) for one in Shelf((data.PATCHES,)).values()}
    columns = [(tuple(release in own for own in fits.values()), release) for release in reversed(releases())]
    spans = [
        (verdict, [release for _, release in run]) for verdict, run in itertools.groupby(columns, lambda one: one[0])
    ]
    head = "".join(f"<th>{_span(run)}</th>" for _, run in spans)
    cells = ["".join(_FITS if verdict[index] else _NOT for verdict, _ in spans) for index in range(len(fits))]
    rows = [f'<tr><th><a href="#{name}">{name}</a></th>{own}</tr>' for name, own in zip(fits, cells, strict=True)]
    return "\n".join(['<table class="matrix">', f"<tr><th>vLLM</th>{head}</tr>", *rows, "</table>"])


_FITS: Final = '<td class="fits">✓</td>'
_NOT: Final = "<td>–</td>"


def _releases_of(patch: Patch) -> frozenset[str]:
    known = json.loads((patch.folder / KNOWN_FILE).read_text())
    files = [file for variant in known["variants"].values() for file in variant["files"].values()]
    return frozenset(release for file in files for state in file if state["lines"] for release in state["vllm"])


def _span(releases: Sequence[str]) -> str:
    return releases[0] if len(releases) == 1 else f"{releases[-1]}–{releases[0]}"


def _patch(patch: Patch) -> str:
    text = patch.text
    facts = {
        "for": ", ".join(code(method) for method in text.required_by.methods),
        "needed when": text.required_by.when,
        "model runner": text.runner if text.runner != "any" else "",
        "error without it": "; ".join(code(one) for one in text.errors),
        "upstream": "; ".join(_thread(one) for one in text.upstream),
        "drop it when": text.drop_when,
    }
    lines = "\n".join(f"- **{name}**: {value}" for name, value in facts.items() if value)
    return f"## {patch.id}\n\n{text.title}. {_sentences(text.hole)}\n\n{lines}"


def _sentences(text: str) -> str:
    """Return the first sentences of a text, up to 40 words or one sentence; `patch explain` prints all of them."""
    first, *others = re.split(r"(?<=[.\"]) (?=[A-Z])", " ".join(text.split()))
    for other in others:
        if len(f"{first} {other}".split()) > _MOST_WORDS:
            break
        first = f"{first} {other}"
    return first


_MOST_WORDS: Final = 40


def _thread(one: Upstream) -> str:
    return f"[{one.url.partition('.com/')[2]}]({one.url}) ({one.state}, {one.seen})"


def inspect_findings() -> str:
    """Return every finding of `inspect`: what is found, what vLLM does with it, and what to do."""
    rows = ((code(name), about, impact, fix) for name, (about, impact, fix) in meanings().items())
    return table(("code", "what is found", "what vLLM does", "what to do"), rows)


def failures() -> str:
    """Return every known failure of a start without those that a patch cures: exit code, log, cause, fix."""
    patched = {bug.patch for bug in bugs((data.PATCHES,))}
    return "\n".join(_failure(one) for one in (*known_failures(), KILLED) if one.finding.code not in patched)


def _failure(one: KnownFailure) -> str:
    found = one.finding
    text = _literal(one.pattern.pattern)
    return f"- {code(found.code)} ({one.exit_code}{f', {_quoted(text)}' if text else ''}): {found.message} {found.fix}"


def _literal(pattern: str) -> str:
    """Return the longest plain text of a pattern, if it is long enough to be searched for."""
    plain = re.split(r"\\[wWdDsSb]|[|()\[\]{}?*+^$]|(?<!\\)\.", re.sub(r"\\([^wWdDsSb])", _kept, pattern))
    longest = max((one.translate(_BACK).strip(" :,") for one in plain), key=len)
    return longest if len(longest) > 11 else ""


_KEPT: Final = {sign: chr(0xE000 + index) for index, sign in enumerate("|()[]{}?*+^$.\\")}
_BACK: Final = str.maketrans({private: sign for sign, private in _KEPT.items()})
"""Signs that a pattern escapes, while it is taken apart."""


def _kept(found: re.Match[str]) -> str:
    return _KEPT.get(found[1], found[1])


def _quoted(text: str) -> str:
    return f"`` {text} ``" if "`" in text else code(text)


def smoke_checks() -> str:
    """Return the checks of `smoke`: what each needs, and what a failure does."""
    rows = [
        (one.id, one.name, ", ".join(sorted(need.name.lower() for need in one.needs)) or "-",
         "fails" if one.counts else "warns")
        for one in CHECKS
    ]  # fmt: skip
    return table(("check", "what is right", "needs", "otherwise it"), rows)


def smoke_issues() -> str:
    """Return the issues of vLLM that the checks show."""
    rows = [
        (id_, f"[#{one.number}]({one.url})", one.title, one.fixed_in or one.state)
        for id_, known in KNOWN.items()
        for one in known
    ]  # fmt: skip
    return table(("check", "vLLM", "what", "fixed in, else state"), rows)


def exit_codes() -> str:
    """Return the exit codes from the tree in errors.py's docstring."""
    found: dict[str, list[str]] = {"0": ["success"]}
    for name, number, text in _ERROR.findall(errors.__doc__ or ""):
        assert getattr(errors, name).exit_code == int(number), f"errors.py lists another exit code for {name}"
        found.setdefault(number, []).append(text)
    return table(("code", "meaning"), [(number, "; ".join(texts)) for number, texts in found.items()])


def server_states() -> str:
    """Return what `status` prints as a state, in the order of a server's life."""
    rows = ((code(word), meaning.sentence, meaning.exit_code) for word, meaning in MEANINGS.items())
    return table(("state", "meaning", "`status NAME`"), rows)


_ERROR: Final = re.compile(r"^(?:[├└]─ )?(\w+) +(\d+)  (.+)$", re.MULTILINE)

_FRESH: Final = 2
"""How many releases a measurement may be behind before it is stale."""


def measured_machines() -> str:
    """Return what was measured, a row for each machine, vLLM and way to run it, for one request at once."""
    found: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for whole in (*_measurements(), *_evidence()):
        for row in ({**whole.get("same", {}), **row} for row in whole["rows"]):
            if "tokens_per_second" not in row or row.get("linear_kernel") == "marlin":
                continue  # a pair for a factor, not a server's speed
            if row.get("sampling", "greedy") != "greedy":
                continue  # it would be a mean of two ways to sample
            fresh = row.get("vllm") in releases()[-_FRESH - 1 :]
            served = row.get("images") and row.get("kv_cache_dtype") == "bf16"  # what the profiles start
            as_shipped = served and row.get("compile", "default") == "default"
            if fresh and as_shipped and row["concurrency"] == 1 and row["context"] == _SHORT:
                model = re.findall(r"[ae]?\d+b", whole["targets"][0])
                where = f"{whole['machine']}, {'-'.join(model).upper()}"
                key = (where, row["vllm"], _patches_of(row), whole["date"])
                name = f"{row['method']} k={row['k']}{'' if _drawn(row) else ' (measured)'}" if row["k"] else "none"
                found.setdefault(key, {}).setdefault(name, []).append(row["tokens_per_second"])
    head = ("machine, target", "vLLM", "tokens/s, the mean where it was measured twice", "patches", "date")
    rows = [
        (
            machine,
            vllm,
            ", ".join(f"{name} {statistics.mean(each):.0f}" for name, each in sorted(cells.items(), key=_none_first)),
            *facts,
        )
        for (machine, vllm, *facts), cells in found.items()
    ]
    return table(head, rows)


def _measurements() -> Iterator[dict[str, Any]]:
    for file in sorted(data.MEASUREMENTS.glob("*.json"), reverse=True):
        yield json.loads(file.read_text())


def _evidence() -> Iterator[dict[str, Any]]:
    """Yield the runs of evidence with the rows alone that have every patch of their method."""
    for file in sorted(data.PATCHES.glob("*/evidence.json")):
        for run in json.loads(file.read_text())["runs"]:
            most: dict[str, int] = {}
            for row in run["rows"]:
                most[row["method"]] = max(most.get(row["method"], 0), len(row["patches"]))
            yield {**run, "rows": [row for row in run["rows"] if len(row["patches"]) == most[row["method"]]]}


def _none_first(cell: tuple[str, object]) -> tuple[bool, str]:
    return cell[0] != "none", cell[0]


_SHORT: Final = 256
"""Tokens of prompt of the rows that are shown."""


def _patches_of(row: Mapping[str, Any]) -> str:
    return str(len(row.get("patches") or ()) or "none")


def _drawn(row: Mapping[str, Any]) -> bool:
    """Return whether acceptance was drawn by lot."""
    return bool(row.get("acceptance_by") == "synthetic")


def profiles_by_card() -> str:
    """Return which profile fits which card, one of them and two in one machine."""
    head = ("memory of a GPU", "machines (`--machine`)", "one of them", "two of them in one machine")
    return table(head, card_table.rows())


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "profile-keys": profile_keys,
    "shipped-profiles": shipped_profiles,
    "smoke-checks": smoke_checks,
    "smoke-issues": smoke_issues,
    "exit-codes": exit_codes,
    "server-states": server_states,
    "headline": headline.headline,
    "profiles-by-card": profiles_by_card,
    "measured-machines": measured_machines,
    **accuracy.PARTS,
}
"""Parts that stand in the repository, because they are read there."""

SITE: Final[Mapping[str, Callable[[], str]]] = {
    "commands": commands,
    "lint-codes": lint_codes,
    "patch-matrix": patch_matrix,
    "patches": patches,
    "failures": failures,
    "inspect-findings": inspect_findings,
    "formats": formats,
}
"""Parts that a command prints, and that only the site holds."""

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
