"""GS2xx and GS82x: heads, how tokens are drafted, scheduled and accepted, and k by requests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

from packaging.version import Version

from gemmaspec.check.lint.rule import Issue, Path, Role, Subject, rule
from gemmaspec.core import draft_ids
from gemmaspec.core.checkpoint.sizes import SIZES, is_other_family
from gemmaspec.core.releases.drafting import HEAD_FORMATS


@rule("GS206", "error")
def async_scheduling(subject: Subject) -> Iterator[Issue]:
    """Asynchronous scheduling is requested together with something that it does not support."""
    spec, given = subject.profile.speculative, subject.command.argument("--async-scheduling")
    if not spec or not given or given.negated or (subject.runs(">=0.33") and subject.resolved.runner == "v2"):
        return
    if spec.disable_padded_drafter_batch:
        refused = "disable_padded_drafter_batch"
    elif spec.method in ("ngram", "suffix"):
        refused = spec.method
    else:
        return
    message = f"vLLM {subject.vllm} cannot schedule asynchronously with {refused}"
    yield Issue(path=given.path, message=message, fix="remove async_scheduling, so that vLLM decides")


@rule("GS207", "note")
def unpadded_batch(subject: Subject) -> Iterator[Issue]:
    """An unpadded drafter batch switches asynchronous scheduling off."""
    spec = subject.profile.speculative
    if spec and spec.disable_padded_drafter_batch and subject.command.switched("--async-scheduling") is None:
        message = "with an unpadded drafter batch vLLM switches asynchronous scheduling off"
        yield Issue(
            path=("speculative", "disable_padded_drafter_batch"), message=message, fix="remove it unless it is faster"
        )


@rule("GS208", "error")
def synthetic(subject: Subject) -> Iterator[Issue]:
    """Synthetic acceptance needs exactly one form, which matches the number of tokens."""
    spec = subject.profile.speculative
    if not spec or spec.rejection_sample_method != "synthetic" or subject.runs("<0.20"):
        return
    rates, length, tokens = spec.synthetic_acceptance_rates, spec.synthetic_acceptance_length, subject.resolved.tokens
    if (rates is None) == (length is None):
        path, message = "rejection_sample_method", "synthetic needs exactly one of the two forms of acceptance"
    elif rates is not None and len(rates) != tokens:
        path, message = "synthetic_acceptance_rates", f"has {len(rates)} rates for {tokens} tokens"
    elif rates is not None and rates != sorted(rates, reverse=True):
        path, message = "synthetic_acceptance_rates", "a rate is larger than the one before it"
    elif length is not None and length > tokens + 1:
        path, message = "synthetic_acceptance_length", f"is {length:g}, and {tokens} tokens give at most {tokens + 1}"
    else:
        return
    fix = "set synthetic_acceptance_rates, one decreasing rate per token, or synthetic_acceptance_length"
    yield Issue(path=("speculative", path), message=message, fix=fix)


@rule("GS209", "warning", any_release=True)
def lossy(subject: Subject) -> Iterator[Issue]:
    """Acceptance that changes the target's answers."""
    spec = subject.profile.speculative
    method = spec.rejection_sample_method if spec else None
    if method in ("synthetic", "fly"):
        effect = (
            "accepts tokens at random, for measurements"
            if method == "synthetic"
            else "accepts tokens that the target would not choose"
        )
        message = f"{method} {effect}, so answers differ from the target's own"
        yield Issue(
            path=("speculative", "rejection_sample_method"),
            message=message,
            fix="remove it and its keys to serve users",
        )


@rule("GS210", "error")
def fly(subject: Subject) -> Iterator[Issue]:
    """FLy needs acceptances after a token (SpeculativeConfig._verify_args, 0.33.0)."""
    spec = subject.profile.speculative
    if not spec or spec.rejection_sample_method != "fly":
        return
    tokens = subject.resolved.tokens
    if tokens < 2:
        message = "fly needs at least 2 tokens"
        yield Issue(path=("speculative", "num_speculative_tokens"), message=message, fix="draft 2 tokens or more")
    elif spec.fly_window_size and spec.fly_window_size >= tokens:
        message = f"is {spec.fly_window_size}, and must be smaller than num_speculative_tokens, {tokens}"
        yield Issue(path=("speculative", "fly_window_size"), message=message, fix=f"use {tokens - 1} or less")


@rule("GS211", "error")
def different_vocabularies(subject: Subject) -> Iterator[Issue]:
    """Drafting over two vocabularies is always greedy."""
    spec = subject.profile.speculative
    if not spec or not spec.use_heterogeneous_vocab:
        return
    for key, wrong in (
        ("draft_sample_method", spec.draft_sample_method not in (None, "greedy")),
        ("use_local_argmax_reduction", bool(spec.use_local_argmax_reduction) and subject.runs(">=0.33")),
    ):
        if wrong:
            message = f"vLLM {subject.vllm} does not support it together with use_heterogeneous_vocab"
            yield Issue(path=("speculative", key), message=message, fix="remove it")


@rule("GS215", "error")
def adaptive_verification(subject: Subject) -> Iterator[Issue]:
    """Adaptive verification is for DSpark in 0.28 and 0.29, and needs the draft's logits from 0.30 on."""
    spec = subject.profile.speculative
    if not spec or not spec.enable_adaptive_verification or spec.method == "dspark":
        return
    if subject.runs(">=0.28,<0.30"):
        message = f"vLLM {subject.vllm} supports adaptive verification only with dspark"
    elif subject.runs(">=0.30") and spec.use_local_argmax_reduction:
        message = "it needs the draft's logits, which use_local_argmax_reduction does not gather"
    else:
        return
    yield Issue(path=("speculative", "enable_adaptive_verification"), message=message, fix="remove it")


HEADS: Final = frozenset({"mtp", "eagle3", "dflash", "dspark"})
"""Methods whose draft is a head trained for one target."""
_SIZE: Final = re.compile(r"(?<![a-z0-9])(e?[0-9]{1,3}b)(?:[-_]?(a[0-9]{1,2}b))?(?![a-z0-9])", re.IGNORECASE)
_IDS_FROM: Final = ">=0.29"
"""The releases that the patch mtp-draft-ids is for."""
_ROLES: Final[tuple[Role, ...]] = ("target", "draft")
_INSTRUCT: Final = re.compile(r"(?<![a-z0-9])it(?![a-z0-9])", re.IGNORECASE)
_GOOGLE: Final = re.compile(r"gemma-?4", re.IGNORECASE)


@rule("GS801", "warning", any_release=True)
def instruct_head_on_base(subject: Subject) -> Iterator[Issue]:
    """A head trained for the -it model, with the base model as the target."""
    if subject.resolved.method not in HEADS or not _INSTRUCT.search(subject.called("draft")):
        return
    if _is_base(subject):
        message = (
            f"{subject.called('draft')} was made for the -it model, but {subject.name('target')} looks like the base "
            "model. Published for such a pair on a DGX Spark: 25 tokens/s, 41 without a draft"
        )
        yield Issue(
            path=("draft", "model"), message=message, fix="serve the -it target, or remove the draft (--no-spec)"
        )


@rule("GS802", "error", any_release=True)
def head_of_another_size(subject: Subject) -> Iterator[Issue]:
    """A head for another size of Gemma 4, whose hidden states or KV cache it reads, or for another family."""
    if _GOOGLE.search(subject.called("draft")) and is_other_family(subject.called("target")):
        message = f"drafts for Gemma 4, and {subject.name('target')} is another family of models"
        fix = "use a Gemma 4 target, or remove the draft (--no-spec)"
        yield Issue(path=("draft", "model"), message=message, fix=fix)
        return
    if subject.resolved.method not in HEADS:
        return
    target, draft = subject.resolved.target, subject.resolved.draft
    if draft and draft.speculator:
        width = draft.speculator.target_hidden_size
    else:
        width = None
    if target and width:
        if width != target.text.hidden_size:
            message = f"is made for hidden states of {width}, but the target's have {target.text.hidden_size}"
            yield Issue(path=("draft", "model"), message=message, fix="use the head that was made for this target")
        return
    mine, other = _size(subject, "target"), _size(subject, "draft")
    if mine and other and mine != other:
        message = f"is named as a head for {other}, but the target is {mine}"
        yield Issue(path=("draft", "model"), message=message, fix=f"use the head for {mine}", severity="warning")


@rule("GS809", "note", any_release=True)
def unknown_size(subject: Subject) -> Iterator[Issue]:
    """A model that no rule knows: another family, or a Gemma 4 whose name says no known size."""
    if subject.is_other_family:
        message = f"{subject.called('target')} is another family of models, so the rules about Gemma 4 were not checked"
        fix = "read the model's own card: its parsers, its template and its draft"
        yield Issue(path=("target", "model"), message=message, fix=fix)
    for role in _ROLES:
        name, size = subject.called(role), _size(subject, role)
        if subject.checkpoint(role) or not _GOOGLE.search(name) or size in SIZES:
            continue
        if size:
            what = f"names {size}, which is not a size of Gemma 4 known here"
        else:
            what = "names no size of Gemma 4"
        message = f"{name} {what} ({', '.join(SIZES)}): rules about its size, windows and experts were not checked"
        yield Issue(path=(role, "model"), message=message, fix="add --models, which reads its config.json")


@rule("GS803", "error", any_release=True)
def sampling_refused(subject: Subject) -> Iterator[Issue]:
    """Defaults that vLLM rejects under speculation (SamplingParams._validate_spec_decode, from 0.19.1)."""
    if subject.resolved.method:
        given = subject.command.argument("--override-generation-config")
    else:
        given = None
    defaults = _json(given.value if given else None)
    refused = [key for key in ("min_p", "logit_bias") if defaults.get(key)]
    if given and refused:
        message = (
            f"sets {' and '.join(refused)} for every request, and under speculation vLLM answers those with HTTP 400"
        )
        yield Issue(path=given.path, message=message, fix="remove it, or leave the draft out (--no-spec)")


@rule("GS804", "warning", of_gemma=True)
def json_under_concurrency(subject: Subject) -> Iterator[Issue]:
    """Broken JSON of concurrent requests under MTP (vLLM pull request 44993; fixed in 0.26.0, not in 0.24.0)."""
    if subject.resolved.method != "mtp" or subject.runs(">=0.26") or subject.command.number("--max-num-seqs") == 1:
        return
    message = (
        f"with vLLM {subject.vllm} JSON by schema comes out broken when several requests draft at once: measured with "
        "an E2B and its assistant 75 to 100 % of answers for 8 to 32 requests"
    )
    fix = "use vLLM 0.26 or later, or set serve.max_num_seqs: 1 if requests ask for JSON"
    yield Issue(path=("speculative", "method"), message=message, fix=fix)


@rule("GS807", "error")
def unknown_format(subject: Subject) -> Iterator[Issue]:
    """A head whose format this vLLM does not support yet."""
    if subject.resolved.draft:
        declared = subject.resolved.draft.config.get("speculators_model_type")
    else:
        declared = None
    name = subject.called("draft").lower()
    for kind, called, since in HEAD_FORMATS:
        if (declared == kind if declared else name.endswith(called)) and not subject.runs(f">={since}"):
            message = f"is a head in the format {kind}, which vLLM {subject.vllm} does not support"
            yield Issue(path=("draft", "model"), message=message, fix=f"use vLLM {since} or later")


@rule("GS235", "error")
def listed_ids(subject: Subject) -> Iterator[Issue]:
    """A list of ids (`draft.ids`) that cannot be read, or that this draft or this vLLM cannot take."""
    draft = subject.profile.draft
    if not draft or not draft.ids:
        return
    path, without = ("draft", "ids"), "remove draft.ids"
    if unread := subject.here.get("ids"):
        yield Issue(path=path, message=unread, fix="gemmaspec bench PROFILE --save-ids FILE writes one")
    if subject.resolved.method != "mtp":
        message = (
            f"only an assistant (method mtp) takes a list of ids, and the method is {subject.resolved.method or 'none'}"
        )
        yield Issue(path=path, message=message, fix=without)
    elif not subject.runs(_IDS_FROM):
        message = f"vLLM {subject.vllm} has no head that the patch {draft_ids.PATCH} fits; it is for {_IDS_FROM}"
        yield Issue(path=path, message=message, fix=f"{without}, or use vLLM 0.29 or later")
    elif _scores_few(subject):
        message = "this assistant scores few ids already, by centroids, and its start would stop"
        yield Issue(path=path, message=message, fix=without)
    count = subject.here.get("ids count", "0")
    if subject.resolved.target and int(count) > subject.resolved.target.text.vocab_size // 2:
        message = f"lists {int(count):,} of {subject.resolved.target.text.vocab_size:,} ids, which saves little"
        yield Issue(path=path, message=message, fix="list fewer", severity="note")


def _scores_few(subject: Subject) -> bool:
    """Return whether the assistant has centroids: by its configuration, else by the sizes that have them."""
    if subject.resolved.draft and subject.resolved.draft.speculator:
        return subject.resolved.draft.speculator.scored_tokens is not None
    return _size(subject, "draft") in ("E2B", "E4B")


def _is_base(subject: Subject) -> bool:
    """Return whether the target is a base model: without a chat template, or Google's own without -it."""
    if subject.resolved.target and subject.resolved.target.has_chat_template is not None:
        return not subject.resolved.target.has_chat_template
    name = subject.called("target")
    of_google = (subject.name("target") or "").lower().startswith("google/")  # others leave -it out of names of theirs
    return of_google and bool(_GOOGLE.search(name) and _SIZE.search(name)) and not _INSTRUCT.search(name)


def _size(subject: Subject, role: Role) -> str | None:
    """Return the size in a model's name, as E2B or 26B-A4B."""
    size = _SIZE.search(subject.called(role))
    if size:
        return "-".join(filter(None, size.groups())).upper()
    return None


def _json(text: str | None) -> dict[str, object]:
    try:
        content = json.loads(text or "{}")
    except ValueError:
        return {}
    if isinstance(content, dict):
        return content
    return {}


_KEY: Final[Path] = ("speculative", "k_by_requests")
_FIELD: Final = "num_speculative_tokens_per_batch_size"
_CUT: Final = ("draft_model", "dflash", "dspark")
"""Methods whose v2 drafter of 0.32.0 takes the asked number and does not use it: standalone_ar/speculator.py and
dflash/speculator.py in vllm/v1/worker/gpu/spec_decode."""


@rule("GS820", "error")
def table_does_not_hold(subject: Subject) -> Iterator[Issue]:
    """A table of k where vLLM has none, does not save what it should, or answers wrongly."""
    table = _table(subject)
    why = _why_not(subject, table) if table else ""
    if why:
        yield Issue(path=_KEY, message=why, fix="remove it, or choose one num_speculative_tokens for all loads")


@rule("GS820", "error")
def table_against_others(subject: Subject) -> Iterator[Issue]:
    """What takes the table away from vLLM, or chooses k against it."""
    spec = subject.profile.speculative
    if not spec or not spec.k_by_requests:
        return
    given = subject.command.argument("--data-parallel-size")
    if given and subject.command.number("--data-parallel-size") != 1:
        message = (
            f"with data parallelism vLLM drops the table and drafts {subject.resolved.tokens} tokens at every load"
        )
        yield Issue(path=given.path, message=message, fix="remove --data-parallel-size or k_by_requests")
    if spec.enable_adaptive_verification:
        path = ("speculative", "enable_adaptive_verification")
        yield Issue(path=path, message="it chooses k by itself, against k_by_requests", fix="remove one of them")


@rule("GS822", "warning")
def table_not_compared(subject: Subject) -> Iterator[Issue]:
    """A table of k on a GPU with another method than mtp, whose answers were compared with those of a fixed k."""
    if (
        not subject.machine.gpus
        or not _table(subject)
        or subject.resolved.method == "mtp"
        or _why_not(subject, _table(subject))
    ):
        return
    message = f"on a GPU nobody has compared the answers of {subject.resolved.method} with those of a fixed k"
    yield Issue(path=_KEY, message=message, fix="gemmaspec bench --help    # measure it against the best single k")


def _table(subject: Subject) -> dict[int, int]:
    spec = subject.profile.speculative
    if spec:
        return dict(spec.k_by_requests or {})
    return {}


def _why_not(subject: Subject, table: dict[int, int]) -> str:
    """Return why a table does not hold under this release, model runner and method; "" where nothing is known."""
    gpu, vllm = subject.machine.gpus, Version(subject.vllm)
    method, runner = subject.resolved.method, subject.resolved.runner
    if vllm < Version("0.24.0"):
        return f"vLLM {subject.vllm} has no {_FIELD}; 0.24.0 is the first that has it"
    if gpu and runner == "v1":
        return (
            "model runner v1 gives up full CUDA graphs for a table of k; on an H200 with 0.26.0 a step then took two "
            "to five times as long"
        )
    if runner == "v2" and (vllm < Version("0.32.0") or method in _CUT):
        return (
            f"vLLM {subject.vllm} with {method} and model runner v2 drafts {subject.resolved.tokens} tokens at every "
            "load and drops those beyond the table, so drafting gets no cheaper"
        )
    if runner == "v1" and method != "draft_model" and 0 in table.values():
        return (
            f"a k of 0 with {method} and model runner v1 gave wrong tokens in 4 of 28 answers when the number of "
            "requests changed (vLLM 0.32.0 on a CPU)"
        )
    return ""
