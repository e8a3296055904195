"""The checks of a release day that are no command of their own: each prints one JSON document. Used by release_day.py.

    .venv/bin/python tools/release_checks.py transformers|failures|template|fit|docs|forget RELEASE

Exit code 0 when nothing is left to do, 3 when somebody has to look, 4 when something is missing.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT: Final = Path(__file__).parent.parent
TEMPLATE: Final = "examples/tool_chat_template_gemma4.jinja"
LEAST: Final = 12
"""Letters of a text that is looked for; shorter ones are found anywhere."""
_JOINED: Final = re.compile(r"""["']\s*\n\s*[frbFRB]{0,2}["']""")
"""Where a text goes on in the next line of a source."""
PAGES: Final = {
    "docs/explanations/oracle.md": "make oracle, and write its results there",
    "docs/explanations/proof.md": "gemmaspec patch prove --all-releases --json | python tools/proof_table.py",
    "docs/reference/releases.md": "read what it says of the newest release",
}
"""Pages that name the newest release and are not made by `make reference`, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a check comes to."""

    word: str
    details: Sequence[str] = ()
    more: Mapping[str, Any] | None = None
    look: bool = False
    """Whether somebody has to look."""


def before(release: str) -> str:
    """Return the release of the table before one."""
    from gemmaspec.core.releases.facts import releases

    older = [one for one in releases() if Version(one) < Version(release)]
    return older[-1] if older else release


def transformers(release: str) -> Found:
    """Return whether the table of transformers has a row for the release, within what its METADATA asks for."""
    from gemmaspec.core.releases.drafting import transformers_for
    from gemmaspec.core.releases.facts import facts_for

    facts = facts_for(release)
    return transformers_within(facts.transformers_declared if facts else "", transformers_for(release))


def transformers_within(asked: str, ours: str | None) -> Found:
    """Compare the table's row, None where it has none, with what METADATA asks for."""
    if ours is None:
        return Found(
            word=f"no row for it; its METADATA asks for {asked}: add one to gemmaspec/core/releases/drafting.yaml",
            look=True,
        )
    outside = [one for one in _bounds(ours) if not SpecifierSet(asked).contains(one, prereleases=True)]
    word = f"{ours}; its METADATA asks for {asked}"
    return Found(word=word, details=[f"outside of it: transformers {one}" for one in outside], look=bool(outside))


def _bounds(ours: str) -> Iterator[str]:
    """Yield the oldest release of a range, and one just below its end."""
    for one in SpecifierSet(ours):
        if one.operator == ">=":
            yield one.version
        elif one.operator == "<":
            major, minor = (*Version(one.version).release, 0)[:2]
            yield f"{major}.{minor - 1}.0"


def failures(release: str) -> Found:
    """Return which texts of known failures and phases the release before prints, and this one does not."""
    import oracle

    from gemmaspec.run.ready.known_failures import known_failures
    from gemmaspec.run.ready.phases import MARKS

    patterns = [(one.code, one.pattern.pattern) for one in known_failures()]
    patterns += [(f"phase {one.phase.value}", one.pattern.pattern) for one in MARKS]
    old, new = (source_text(oracle.source(one)) for one in (before(release), release))
    gone = [
        f"{code}: {text}"
        for code, pattern in patterns
        for text in fragments(pattern)
        if text in old and text not in new
    ]
    known = sum(text in new for _, pattern in patterns for text in fragments(pattern))
    return Found(word=f"{known} texts are in its sources, {len(gone)} are gone", details=gone, look=bool(gone))


def fragments(pattern: str) -> list[str]:
    """Return the plain texts of a pattern that are long enough to be looked for."""
    import re._parser as parser

    found: list[str] = []

    def walk(parsed: Any, run: list[str]) -> list[str]:
        for kind, value in parsed:
            name = str(kind)
            if name == "LITERAL":
                run.append(chr(value))
                continue
            found.append("".join(run))
            run = []
            inner = value[-1] if name == "SUBPATTERN" else None
            for one in value[1] if name == "BRANCH" else [inner] if inner is not None else []:
                found.append("".join(walk(one, [])))
        return run

    found.append("".join(walk(parser.parse(pattern), [])))
    return sorted({one.strip() for one in found if len(one.strip()) >= LEAST})


def source_text(folder: Path) -> str:
    """Return all of vLLM's Python, with texts that go on in the next line joined."""
    return "\n".join(_JOINED.sub("", file.read_text("utf-8", "replace")) for file in sorted(folder.rglob("*.py")))


def template(release: str) -> Found:
    """Return whether the chat template in the sdist is the one of the release before."""
    from facts import sdist_member

    from gemmaspec.run.stack.build import template_for

    old, new = (sdist_member(one, TEMPLATE) for one in (before(release), release))
    ours = template_for(release).name
    if not new:
        return Found(word=f"its sdist has no {TEMPLATE}; templates/{ours} is used", look=True)
    if old == new:
        return Found(word=f"as in {before(release)}; templates/{ours} is used")
    details = list(difflib.unified_diff(old.splitlines(), new.splitlines(), before(release), release, lineterm=""))
    word = f"it is not that of {before(release)}: hold templates/{ours} against it (tests/core/test_chat_template.py)"
    return Found(word=word, details=details[:200], look=True)


def fit(release: str) -> Found:
    """Return what `fit` plans for each shipped profile, against the release before; shapes that ship, no network."""
    from gemmaspec.check.carry.shipped import shipped

    found = {loaded.profile.name: _fitted(str(loaded.file), release) for loaded in shipped()}
    changed = [f"{name}: {line}" for name, lines in found.items() for line in lines]
    unread = any("fit cannot tell" in line for line in changed)
    word = f"{len(found)} profiles, {sum(bool(lines) for lines in found.values())} of them planned otherwise"
    return Found(word=word, details=changed, more={"profiles": found}, look=unread)


def _fitted(profile: str, release: str) -> list[str]:
    from gemmaspec.check.fit.document import document
    from gemmaspec.check.use_cases.fit import FitRequest
    from gemmaspec.check.use_cases.fit import fit as use_case
    from gemmaspec.core.errors import GemmaspecError
    from gemmaspec.core.profile.load import load_profile
    from gemmaspec.core.profile.machines import MACHINES

    of_any = MACHINES[load_profile(profile).profile.machine]
    machine = "h100" if of_any.gpus and of_any.memory_gb is None else None
    asked = [FitRequest(profile=profile, release=one, machine=machine) for one in (before(release), release)]
    try:
        old, new = (document(use_case(one)) for one in asked)
    except GemmaspecError as error:
        return [f"fit cannot tell: {error.message}"]
    rows = {
        "fits": (old["ok"], new["ok"]),
        "weights (bytes)": (old["memory"]["weights"], new["memory"]["weights"]),
        "left for the cache (bytes)": (old["memory"]["available_for_cache"], new["memory"]["available_for_cache"]),
        "KV cache (tokens)": tuple((one["kv_cache"] or {}).get("size_tokens") for one in (old, new)),
        "batch (tokens)": tuple(one["flags"]["max_num_batched_tokens"] for one in (old, new)),
        "sequences": tuple(one["flags"]["max_num_seqs"] for one in (old, new)),
    }
    return [f"{name}: {one} becomes {other}" for name, (one, other) in rows.items() if one != other]


def docs(release: str) -> Found:
    """Return which pages that are written by hand do not name the release."""
    silent = {page: todo for page, todo in PAGES.items() if release not in (ROOT / page).read_text(encoding="utf-8")}
    word = f"{len(PAGES) - len(silent)} of {len(PAGES)} pages written by hand name it"
    return Found(word=word, details=[f"{page}: {todo}" for page, todo in silent.items()], look=bool(silent))


def forget(release: str) -> Found:
    """Take a release out of the tables, as if it were not known yet."""
    import facts as tool
    import oracle

    from gemmaspec.core import data
    from gemmaspec.core.files import write_whole
    from gemmaspec.core.releases import facts

    there = {one: facts.rows_of(one) for one in facts.releases() if one != release}
    tool.write(there)
    rows = json.loads(oracle.DATA.read_text())
    kept = {machine: {one: row for one, row in by.items() if one != release} for machine, by in rows.items()}
    write_whole(oracle.DATA, json.dumps(kept, indent=1) + "\n")
    for file in sorted(data.PATCHES.glob("*/known.json")):
        whole = json.loads(file.read_text())
        for variant in whole["variants"].values():
            for path, seen in variant["files"].items():
                rest = [one | {"vllm": [name for name in one["vllm"] if name != release]} for one in seen]
                variant["files"][path] = [one for one in rest if one["vllm"]]
        write_whole(file, json.dumps(whole, indent=1) + "\n")
    return Found(word=f"the tables go up to {list(there)[-1]}")


CHECKS: Final[Mapping[str, Callable[[str], Found]]] = {
    one.__name__: one for one in (transformers, failures, template, fit, docs, forget)
}


def main(words: Sequence[str]) -> int:
    """Do one check; returns the exit code."""
    from gemmaspec.core.errors import GemmaspecError

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    name, release = words
    try:
        found = CHECKS[name](release)
    except GemmaspecError as error:
        print(error.message, file=sys.stderr)
        return error.exit_code
    print(json.dumps({"word": found.word, "details": list(found.details), **(found.more or {})}))
    return 3 if found.look else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
