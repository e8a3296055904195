"""What vLLM will do with a profile has one answer, whichever command is asked, and it is vLLM's own.

tests/data/resolved.json has vLLM's answers for every shipped profile under some changes (`oracle.py resolved`); the
shapes are those that ship.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parent.parent.parent / "tools"
sys.path.insert(0, str(TOOLS))

from oracle_resolved import ANSWERS, CHANGES, Pair, pairs  # noqa: E402

from gemmaspec.check.fit.demand import demand_of  # noqa: E402
from gemmaspec.check.use_cases.server_facts import facts_of  # noqa: E402
from gemmaspec.core.errors import UsageError  # noqa: E402
from gemmaspec.core.profile.device import named  # noqa: E402
from gemmaspec.core.profile.graphs import LOST  # noqa: E402
from gemmaspec.core.profile.machines import MACHINES  # noqa: E402
from gemmaspec.core.resolved.answer import Unknown, known  # noqa: E402
from gemmaspec.core.resolved.resolve import Resolved, resolved_of  # noqa: E402
from gemmaspec.core.rows import GRAPH_MODES  # noqa: E402
from gemmaspec.run.kept.attention import graphs_ahead  # noqa: E402

PAIRS = tuple(pairs())
IDS = [f"{pair.name}, {pair.change}" for pair in PAIRS]
LEAST = 60
"""Answers that are there also where some profiles have changed since vLLM was asked."""
Answers = dict[str, Any]


ASKED: Mapping[str, Answers] = json.loads(ANSWERS.read_text(encoding="utf-8"))
ANSWERED = [pair for pair in PAIRS if "refused" not in ASKED.get(pair.key, {"refused": ""})]
"""Those that vLLM was asked about as they are now, and does not refuse."""


def of(resolved: Resolved) -> Answers:
    """What is known, in the words of the recorded answers."""
    graphs = known(resolved.graphs)
    answers = {
        "batch": resolved.batch,
        "sequences": resolved.sequences,
        "length": resolved.length,
        "whole items": resolved.whole_items,
        "cache": resolved.cache,
        "runner": resolved.runner,
        "hybrid": resolved.hybrid,
        "target": resolved.backend,
        "draft": resolved.draft_backend,
        "graphs": graphs.target if graphs else None,
        "draft graphs": graphs.draft if graphs else None,
        "images": resolved.images,
    }
    return {name: answer for name, answer in answers.items() if not isinstance(answer, Unknown | None)}


def by_lint(pair: Pair) -> Answers:
    return of(resolved_of(pair.profile, vllm=pair.release, target=pair.target, draft=pair.draft))


def by_fit(pair: Pair) -> Answers:
    device = named(MACHINES[pair.profile.machine])
    assert device
    try:
        flags = demand_of(
            resolved_of(pair.profile, vllm=pair.release, device=device, target=pair.target, draft=pair.draft)
        )
    except UsageError:
        return {}
    return {
        "batch": flags.max_num_batched_tokens,
        "sequences": flags.max_num_seqs,
        "length": flags.max_model_len,
        "whole items": flags.whole_items,
        "cache": flags.cache_dtype,
        "runner": flags.runner,
        "hybrid": flags.hybrid,
        "graphs": flags.graphs,
    }


def by_name(pair: Pair) -> Answers:
    """What the dry run, tune and status know, which read no checkpoint."""
    return of(resolved_of(pair.profile, vllm=pair.release))


def by_predict(pair: Pair) -> Answers:
    """What decides which measured cells speak for a server."""
    facts = facts_of(pair.loaded)
    kind = facts.kind
    answers = {"target": kind.backend, "images": kind.images, **of(facts.resolved)}
    if facts.modes:
        assert kind.drafting == (GRAPH_MODES[facts.modes.target], GRAPH_MODES.get(facts.modes.draft or ""))
    return {name: answer for name, answer in answers.items() if answer is not None}


def differences(answers: Answers, vllm: Answers) -> Iterator[str]:
    for name in sorted(answers.keys() & vllm.keys()):
        answer, theirs = answers[name], vllm[name]
        if name in ("target", "draft"):
            same = theirs in ([], [answer])
        elif name == "cache":
            same = theirs == "auto" or theirs.startswith("fp8") == answer.startswith("fp8")
        else:
            same = answer == theirs
        if not same:
            yield f"{name}: {answer} here, {theirs} in vLLM"


def test_vllm_was_asked_about_most_of_them() -> None:
    """Run `tools/oracle.py resolved` where a profile or a key changed."""
    assert len(ANSWERED) >= LEAST


@pytest.mark.parametrize("pair", PAIRS, ids=IDS)
def test_every_command_has_the_same_answers(pair: Pair) -> None:
    """Where one knows less than another, it says so, and never something else."""
    reference = by_lint(pair)
    for way in (by_fit(pair), by_name(pair), by_predict(pair)):
        assert {name: answer for name, answer in way.items() if answer != reference.get(name, answer)} == {}
    ahead = any(line.startswith("CUDA graphs") for line in graphs_ahead(pair.profile, elsewhere=True))
    assert ahead == (reference.get("graphs") in LOST or reference.get("draft graphs") == "NONE")


@pytest.mark.parametrize("pair", ANSWERED, ids=lambda pair: f"{pair.name}, {pair.change}")
def test_the_answers_are_those_of_vllm(pair: Pair) -> None:
    assert list(differences(by_lint(pair), ASKED[pair.key])) == []


def test_the_changes_are_of_what_decides() -> None:
    assert len(CHANGES) >= 13
