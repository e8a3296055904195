"""Checks that need several keys of a profile. Pure: each yields mistakes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from gemmaspec.core.errors import UsageError
from gemmaspec.core.profile import replica
from gemmaspec.core.profile.command import extra_of, gives_parallel_size
from gemmaspec.core.profile.fields import LOOK_UPS
from gemmaspec.core.profile.foreign_words import unknown_machine
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.releases.drafting import KEYS_OF_ACCEPTANCE, KEYS_OF_METHODS


def need_one_machine(profile: Profile, what: str) -> None:
    """Raise UsageError for a server on several machines, where `what` knows servers on one."""
    if profile.nodes > 1:
        raise UsageError(
            f"{what} is for a server on one machine, and {profile.name} has nodes: {profile.nodes}",
            hint=f"gemmaspec fit {profile.name}    # memory and bounds on several machines",
        )


_NEEDS_DRAFT: Final = {"draft_model", "eagle", "eagle3", "dflash", "dspark"}
OWN_KEYS: Final = {
    "--speculative-config": "speculative",
    "--spec-model": "speculative",
    "--spec-method": "speculative",
    "--spec-tokens": "speculative",
    "--host": "serve.bind",
    "--port": "serve.port",
    "--api-key": "pass_env (VLLM_API_KEY)",
    "--hf-token": "pass_env (HF_TOKEN)",
    "--model": "target.model",
    "--chat-template": "chat.template",
}
"""Flags that a profile sets with a key of its own."""

OF_EACH_RANK: Final = frozenset(
    {"--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless"}
    | {"--distributed-executor-backend", "--api-server-count"}
)
"""Flags that `nodes` sets, each machine its own. With --headless vLLM refuses to start API servers."""

OF_EACH_MACHINE: Final = frozenset(
    {"VLLM_HOST_IP", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"}
)
"""Variables that name an address or a device of one machine."""

_METHOD: Final = ("speculative", "method")
_LIMIT: Final = ("serve", "max_model_len")


@dataclass(frozen=True)
class Mistake:
    """Keys that are valid by themselves but wrong together: the key to blame, and the problem in one clause.

    The loader adds the places and raises one ProfileError for all mistakes of a profile.
    """

    path: tuple[str | int, ...]
    message: str
    because: tuple[str | int, ...] = ()
    """The key that makes the value at `path` wrong, if the value alone would be right."""

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))}: {self.message}"


def mistakes(profile: Profile) -> Iterator[Mistake]:
    """Yield every problem of a profile whose single fields are valid."""
    for rule in _RULES:
        yield from rule(profile)


def _machine(profile: Profile) -> Iterator[Mistake]:
    if profile.machine not in MACHINES:
        yield Mistake(("machine",), unknown_machine(profile.machine))


def _pairing(profile: Profile) -> Iterator[Mistake]:
    spec, draft = profile.speculative, profile.draft
    if draft and not spec:
        yield Mistake(
            ("draft",),
            "a draft needs `speculative: {method: …}`; for an E2B or E4B the method is draft_model. "
            "To serve without drafting: gemmaspec up NAME --no-spec",
        )
    if not spec:
        return
    if spec.method in _NEEDS_DRAFT and not draft:
        yield Mistake(("speculative", "method"), f"{spec.method} needs a `draft: {{model: …}}`")
    if spec.method in LOOK_UPS and draft:
        yield Mistake(("draft",), f"{spec.method} drafts from the text itself; remove the draft", _METHOD)
    if spec.num_speculative_tokens is None and spec.method != "suffix":
        yield Mistake(("speculative",), "num_speculative_tokens is missing")


def _k_by_requests(profile: Profile) -> Iterator[Mistake]:
    spec = profile.speculative
    table = spec.k_by_requests if spec else None
    if not spec or table is None:
        return
    path = ("speculative", "k_by_requests")
    if not table.get(1):
        yield Mistake(path, "needs an entry for 1 request that drafts at least 1 token")
    elif max(table.values()) != spec.num_speculative_tokens:
        why = f"its largest value is {max(table.values())}, and num_speculative_tokens must be the same"
        yield Mistake(path, why, ("speculative", "num_speculative_tokens"))


def _fields_of_method(profile: Profile) -> Iterator[Mistake]:
    spec = profile.speculative
    if not spec:
        return
    for field, methods in KEYS_OF_METHODS.items():
        if spec.method not in methods and getattr(spec, field) is not None:
            known = " or ".join(sorted(methods))
            yield Mistake(("speculative", field), f"belongs to the method {known}, not to {spec.method}", _METHOD)
    if spec.parallel_drafting and spec.disable_padded_drafter_batch:
        yield Mistake(
            ("speculative", "disable_padded_drafter_batch"), "vLLM does not support it with parallel_drafting"
        )
    for field, method in KEYS_OF_ACCEPTANCE.items():
        if spec.rejection_sample_method != method and getattr(spec, field) is not None:
            because = ("speculative", "rejection_sample_method")
            yield Mistake(("speculative", field), f"belongs to rejection_sample_method: {method}", because)


def _draft_parallelism(profile: Profile) -> Iterator[Mistake]:
    if profile.speculative:
        draft_tp = profile.speculative.draft_tensor_parallel_size
    else:
        draft_tp = None
    target_tp = profile.serve.tensor_parallel_size or 1
    if extra_of(profile).given("--tensor-parallel-size"):
        return  # lint checks the value
    if draft_tp is not None and draft_tp not in (1, target_tp):
        yield Mistake(
            ("speculative", "draft_tensor_parallel_size"),
            f"is {draft_tp}; vLLM accepts 1 or the target's tensor_parallel_size, here {target_tp}",
            ("serve", "tensor_parallel_size"),
        )


def _lookup(profile: Profile) -> Iterator[Mistake]:
    spec = profile.speculative
    if spec and spec.prompt_lookup_min and spec.prompt_lookup_max and spec.prompt_lookup_min > spec.prompt_lookup_max:
        why = f"is {spec.prompt_lookup_min}, which is larger than prompt_lookup_max, {spec.prompt_lookup_max}"
        yield Mistake(("speculative", "prompt_lookup_min"), why)


def _context(profile: Profile) -> Iterator[Mistake]:
    spec, limit = profile.speculative, profile.serve.max_model_len
    if spec and spec.max_model_len and limit and spec.max_model_len > limit:
        yield Mistake(("speculative", "max_model_len"), f"is larger than serve.max_model_len, {limit}", _LIMIT)


def _exposure(profile: Profile) -> Iterator[Mistake]:
    try:
        address = ip_address(profile.serve.bind)
    except ValueError:
        yield Mistake(("serve", "bind"), f"{profile.serve.bind!r} is not an address")
        return
    if not address.is_loopback and "VLLM_API_KEY" not in profile.pass_env:
        yield Mistake(
            ("serve", "bind"),
            "other machines can reach this address; add VLLM_API_KEY to pass_env, so that the server requires a key",
        )


def _extra_args(profile: Profile) -> Iterator[Mistake]:
    for index, word in enumerate(profile.serve.extra_args):
        if re.match(r"--[a-z][^ ={]* ", word):
            items = []
            for part in word.split():
                items.append(f"'{part}'" if part.isdecimal() else part)
            shown = ", ".join(items)
            yield Mistake(("serve", "extra_args", index), f"{word!r} is several words; one word per item: [{shown}]")
    for argument in extra_of(profile).arguments:
        if argument.flag in OWN_KEYS:
            yield Mistake(argument.path, f"set {argument.flag} with its own key, {OWN_KEYS[argument.flag]}")


def _nodes(profile: Profile) -> Iterator[Mistake]:
    """Yield what cannot be said of a server on several machines."""
    if profile.nodes == 1:
        return
    if profile.replicas > 1:
        yield Mistake(("replicas",), "works with servers of one machine each only", ("nodes",))
    if profile.watch.container:
        yield Mistake(("watch", "container"), "works on one machine only; run `gemmaspec watch` instead", ("nodes",))
    serve = profile.serve
    gpus = (serve.tensor_parallel_size or 1) * (serve.pipeline_parallel_size or 1)
    if gpus % profile.nodes and not gives_parallel_size(profile):
        why = (
            f"is {profile.nodes}, and the parallel sizes need {gpus} GPUs, which is not the same number on each machine"
        )
        yield Mistake(("nodes",), why, ("serve", "tensor_parallel_size"))
    for name in profile.env:
        if name in OF_EACH_MACHINE:
            yield Mistake(("env", name), "differs on each machine and follows from fleet.yaml; remove it", ("nodes",))
    for argument in extra_of(profile).arguments:
        if argument.flag in OF_EACH_RANK:
            yield Mistake(argument.path, f"nodes: {profile.nodes} already sets {argument.flag}", ("nodes",))


def _patch_twice(profile: Profile) -> Iterator[Mistake]:
    speed = profile.patches.speed
    both = [*profile.patches.required, *profile.patches.optional, *([] if isinstance(speed, str) else speed)]
    for patch in sorted({patch for patch in both if both.count(patch) > 1}):
        yield Mistake(("patches",), f"{patch} is listed twice")


def _replicas(profile: Profile) -> Iterator[Mistake]:
    if profile.machine not in MACHINES:
        return
    for path, message in replica.problems(profile):
        yield Mistake(path, message, ("replicas",) if profile.replicas > 1 else ())
    if profile.replicas > 1 and replica.gpus_each(profile):
        if gives_parallel_size(profile):
            yield Mistake(("serve", "extra_args"), "set tensor_parallel_size with its own key, so that the GPUs count")
        if replica.VISIBLE in profile.env:
            yield Mistake(("env", replica.VISIBLE), "the replicas set it; list the GPUs under devices")


_RULES: Final[tuple[Callable[[Profile], Iterator[Mistake]], ...]] = (
    _machine,
    _pairing,
    _k_by_requests,
    _fields_of_method,
    _draft_parallelism,
    _lookup,
    _context,
    _exposure,
    _extra_args,
    _nodes,
    _patch_twice,
    _replicas,
)
