"""Query vLLM releases themselves: flags, defaults by machine, and whether they accept a command line (`make oracle`).

    .venv/bin/python tools/oracle.py tables [--cpu] [RELEASE …]   flags, keys and variables against the tables, and
                                                                  defaults into core/releases/data/defaults.json
    .venv/bin/python tools/oracle.py lint [--profiles N] [--seed N] RELEASE …   lint against the engine's verdict
    .venv/bin/python tools/oracle.py backends [--gpu 8.6] [RELEASE …]   the attention backend of each layer, built on
                                                                  the meta device, into core/releases/data/backends.json
    .venv/bin/python tools/oracle.py attention [RELEASE …]        what each backend has against Gemma 4's layers, into
                                                                  core/releases/data/attention.json
    .venv/bin/python tools/oracle.py resolved                     what vLLM does with shipped profiles, into
                                                                  tests/data/resolved.json
    .venv/bin/python tools/oracle.py ranks RELEASE                bytes of each part on one of 1, 2, 4 and 8 GPUs
    .venv/bin/python tools/oracle.py ask RELEASE MACHINE ARGUMENT …             one command line

A release answers as tools/oracle_release.py says.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import oracle_attention
import oracle_backends
import oracle_lint
import oracle_ranks
import oracle_resolved
from oracle_release import Oracle, model_folders
from packaging.version import Version

from gemmaspec.core.errors import GemmaspecError
from gemmaspec.core.files import write_whole
from gemmaspec.core.releases.facts import Facts, facts_for, releases

DATA: Final = Path(__file__).parent.parent / "gemmaspec" / "core" / "releases" / "data" / "defaults.json"
GPUS: Final = ("gb10", "h100", "h200", "b200", "a100")


def defaults_of(oracle: Oracle, machines: Iterable[str] = GPUS) -> dict[str, dict[str, int | None]]:
    """Return machine → tokens and sequences of a 31B and an E2B, as the engine resolves them."""
    return {machine: _resolved(oracle, machine) for machine in machines}


def _resolved(oracle: Oracle, machine: str) -> dict[str, int | None]:
    row: dict[str, int | None] = {}
    for size in ("31B", "E2B"):
        folder = model_folders() / f"gemma-4-{size}-it"
        answer = oracle.ask({"argv": ["--model", str(folder)], "machine": machine})
        resolved = answer.get("resolved", {})
        row[f"{size} tokens"] = resolved.get("max_num_batched_tokens")
        row["sequences"] = resolved.get("max_num_seqs")
    return row


def ask_about(wanted: Iterable[str], *, processors: bool) -> int:
    """Ask each release about flags, keys, variables and defaults; return how many differ from the tables.

    Defaults are stored in data/defaults.json. `processors`: include a server on the CPU, which takes another process.
    """
    wrong = 0
    for release in wanted:
        facts = facts_for(release)
        assert facts
        with Oracle(release, "gb10") as oracle:
            answer, defaults = oracle.ask({"flags": True}), defaults_of(oracle)
        if processors:
            with Oracle(release, "cpu") as oracle:
                defaults |= defaults_of(oracle, ("cpu",))
        _keep(release, defaults)
        found = list(differences(facts, answer))
        wrong += len(found)
        print(f"vllm {release}: {len(answer['flags'])} flags, {len(found)} differences", flush=True)
        for text in found:
            print(f"  {text}", flush=True)
    return wrong


def _keep(release: str, defaults: Mapping[str, Mapping[str, int | None]]) -> None:
    there: dict[str, Any] = json.loads(DATA.read_text()) if DATA.exists() else {}
    for machine, row in defaults.items():
        there.setdefault(machine, {})[release] = dict(row)
    ordered = {name: dict(sorted(rows.items(), key=lambda one: Version(one[0]))) for name, rows in there.items()}
    write_whole(DATA, json.dumps(ordered, indent=1) + "\n")


def differences(facts: Facts, answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between a release's parser, SpeculativeConfig and envs, and the table."""
    for name, flag in answer["flags"].items():
        known = facts.flags.get(name)
        if known is None:
            yield f"flag {name} is not in the table"
            continue
        negative = {f"--no-{name.removeprefix('--')}"} if known.negatable else set()
        ours = {name, *negative, *filter(None, (known.short, known.opposite))}
        ours |= {f"--no-{known.opposite.removeprefix('--')}"} if known.opposite else set()
        theirs = {one for one in flag["spellings"] if one in ours or one.startswith("--")}
        aliases = {one for one in theirs if one in facts.flags}
        if unknown := theirs - ours - aliases:
            yield f"flag {name} is also written {', '.join(sorted(unknown))}"
        if known.bare != flag["bare"]:
            yield f"flag {name} {'may' if flag['bare'] else 'may not'} stand alone"
        if known.choices and flag["choices"] and set(flag["choices"]) - {"None", "cuda"} != known.choices:
            yield f"flag {name} takes {', '.join(sorted(set(flag['choices']) ^ known.choices))}"
    spelled = {one for flag in answer["flags"].values() for one in flag["spellings"]}
    for name in sorted(facts.flags):
        if name not in spelled and name != "--help":
            yield f"flag {name} is not the parser's"
    for name in sorted(set(answer["environment"]) ^ facts.environment):
        yield f"variable {name} {'is not in the table' if name in answer['environment'] else 'is not of envs.py'}"
    for name in sorted(facts.speculative_keys - set(answer["speculative"])):
        yield f"speculative key {name} is not of SpeculativeConfig"


def main(words: Sequence[str]) -> int:
    """Run the subcommand and return the exit code."""
    parser = argparse.ArgumentParser(prog="oracle.py")
    commands = parser.add_subparsers(dest="command", required=True)
    tables = commands.add_parser("tables")
    tables.add_argument("releases", nargs="*")
    tables.add_argument("--cpu", action="store_true", help="also the defaults of a server on the CPU")
    ask = commands.add_parser("ask")
    ask.add_argument("release")
    ask.add_argument("machine", choices=(*GPUS, "cpu"))
    ask.add_argument("arguments", nargs=argparse.REMAINDER)
    backends = commands.add_parser("backends")
    backends.add_argument("releases", nargs="*")
    backends.add_argument("--gpu", action="append", default=[], help="only this compute capability, such as 8.6")
    attention = commands.add_parser("attention")
    attention.add_argument("releases", nargs="*")
    commands.add_parser("resolved")
    ranks = commands.add_parser("ranks")
    ranks.add_argument("release")
    lint = commands.add_parser("lint")
    lint.add_argument("releases", nargs="*")
    lint.add_argument("--profiles", type=int, default=300)
    lint.add_argument("--seed", type=int, default=1)
    lint.add_argument("--write", action="store_true", help="write the figures into docs/explanations/oracle.md")
    options = parser.parse_args(words)
    try:
        if options.command == "ask":
            with Oracle(options.release, options.machine) as oracle:
                print(json.dumps(oracle.ask({"argv": options.arguments}), indent=1))
            return 0
        if options.command == "resolved":
            return 3 if oracle_resolved.ask_about(oracle_resolved.pairs()) else 0
        if options.command == "ranks":
            return oracle_ranks.ask_about(options.release)
        wanted = options.releases or list(reversed(releases()))
        if options.command == "tables":
            return 3 if ask_about(wanted, processors=options.cpu) else 0
        if options.command == "attention":
            return 3 if oracle_attention.ask_about(wanted) else 0
        if options.command == "backends":
            return oracle_backends.ask_about(wanted, options.gpu)
        found = oracle_lint.compare(options.releases, options.profiles, options.seed)
        if options.write:
            oracle_lint.write_figures(found, options.seed)
        return 3 if any(one.unexpected for one in found) else 0
    except GemmaspecError as error:
        sys.stderr.write(f"oracle: {error.message}\n" + (f"  {error.hint}\n" if error.hint else ""))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
