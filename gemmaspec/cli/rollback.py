"""`gemmaspec rollback`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from gemmaspec.cli import options, output
from gemmaspec.cli.target import carry_out
from gemmaspec.core.errors import UsageError

if TYPE_CHECKING:
    from gemmaspec.serve.knowngood import KnownGood


def rollback(
    name: options.OptionalStack = None,
    to: Annotated[
        str | None, options.option("--to", "--stack", of="rollback", autocompletion=options.complete_good)
    ] = None,
    list_: Annotated[bool, options.option("--list", of="pull")] = False,
    timeout: options.Timeout = 1800,
    json: options.Json = False,
) -> None:
    """Go back to the last stack that became ready before the current one.

    Starts it with the same files, the same image by digest and the same model revisions. Needs no network if the
    image and models are on this machine. Does not change the profile: the next `up` renders it again.

    With the NAME of a profile that has replicas, goes back to what the last change replaced, one replica at a time.
    """
    from gemmaspec.run.kept.groups import is_group
    from gemmaspec.serve import replicas
    from gemmaspec.serve import rollback as use_case

    if list_:
        chosen = name or use_case.only_name()
        _list(chosen, use_case.kept(chosen), use_case.current(chosen), as_json=json)
        return
    if name and is_group(name):
        if to:
            hint = f"gemmaspec rollback {name}-1 --to {to}"
            raise UsageError("--to is for one server; name a replica", hint=hint)
        carry_out(name, partial(replicas.rollback, name, timeout_s=timeout), as_json=json)
        return
    name = name or use_case.only_name()
    carry_out(name, partial(use_case.rollback, name, to=to, timeout_s=timeout), as_json=json)


def _list(name: str, goods: Sequence[KnownGood], current: str | None, *, as_json: bool) -> None:
    from gemmaspec.cli.text import table

    if not goods and not as_json:
        nothing = f"{name} has not been ready yet, so nothing is kept to go back to"
        output.progress(f"{nothing}; next: gemmaspec status {name}")
        return
    columns = (
        table.Column(""), table.Column("ID"), table.Column("STARTED", 4), table.Column("ENGINE", 2),
        table.Column("VLLM"), table.Column("PORT", 1), table.Column("OPTIONS AND IMAGE", 3, wraps=True),
    )  # fmt: skip
    document = {"known_good": [_document(good, current) for good in goods]}
    table.answer(document, columns, [_row(good, current) for good in goods], as_json=as_json)


def _document(good: KnownGood, current: str | None) -> dict[str, Any]:
    return {
        "id": good.id,
        "number": good.number or None,
        "since": good.since,
        "current": good.key == current,
        "facts": dict(good.facts.facts()),
    }


def _row(good: KnownGood, current: str | None) -> tuple[str, ...]:
    from gemmaspec.cli.text.stack import ago

    started = good.started
    words = [f"--set {override}" for override in started.overrides]
    if started.no_spec:
        words.append("--no-spec")
    if started.locked:
        words.append("--locked")
    if good.facts.image:
        words.append(good.facts.image.name)
    mark = "*" if good.key == current else " "
    options_ = " ".join(words)
    began = ago(good.since)
    return mark, good.id, began, started.engine, good.facts.vllm, str(started.server.port), options_
