"""GS2xx: method, draft, and how they are set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.lint.finding import Found, rule
from gemmaspec.lint.subject import Subject
from gemmaspec.profile.fields import LOCAL_PREFIXES

_DETECTED: Final = (
    ("eagle-", "eagle", ">=0.19.0"),
    ("eagle3", "eagle3", ">=0.19.0"),
    ("dflash", "dflash", ">=0.20.0"),
    ("dspark", "dspark", ">=0.25.0"),
)
"""Parts of a draft's path, in vLLM's order, the method it takes them for, and since when ("Automatically detect the
method" in SpeculativeConfig.__post_init__, vllm/config/speculative.py)."""

_HEADS: Final = {"eagle", "eagle3", "dflash", "dspark"}
"""Methods that vLLM leaves as they are, whatever the path."""


@rule("GS201", "error")
def detected_method(subject: Subject) -> Iterator[Found]:
    """vLLM takes the method from the draft's path, even against one that is given."""
    path, method = subject.name("draft"), subject.method
    if not path or not method or (method in _HEADS and subject.runs(_since(method))):
        return
    for part, taken, versions in _DETECTED:
        if part in path.lower() and subject.runs(versions):
            if taken != method:
                why = f"vLLM {subject.vllm} finds {part!r} in the path {path} and drafts with {taken}, not {method}"
                local = path.startswith(LOCAL_PREFIXES) and subject.profile.image is not None
                mend = "rename the folder" if local else "give the draft as a folder of another name"
                yield Found(path=("draft", "model"), why=why, mend=mend, severity="warning" if local else None)
            return


@rule("GS202", "warning")
def made_for_another_method(subject: Subject) -> Iterator[Found]:
    """A head is drafted with as it was made to; Google's -assistant checkpoints are MTP heads."""
    method, path = subject.method, ("speculative", "method")
    head = subject.draft.speculator if subject.draft else None
    if head and method != head.method:
        why = f"{subject.name('draft')} is made for {head.method}"
        yield Found(path=path, why=why, mend=f"write method: {head.method}", severity="error")
    elif method == "draft_model" and "assistant" in subject.name("draft").lower():
        does = "turns the method into mtp" if subject.runs(">=0.21") else "has no model for it and stops"
        why = f"{subject.name('draft')} looks like an MTP head; vLLM {subject.vllm} {does}"
        yield Found(path=path, why=why, mend="write method: mtp, with vLLM 0.21 or later")


@rule("GS203", "error")
def method_for_gemma(subject: Subject) -> Iterator[Found]:
    """A method that does not work for a Gemma 4 target in this release."""
    method = subject.method
    if method and method != "eagle" and not subject.facts.methods_named(method):
        known = ", ".join(sorted({row.method for row in subject.facts.methods}))
        why = f"with vLLM {subject.vllm}, {method} does not draft for Gemma 4"
        yield Found(path=("speculative", "method"), why=why, mend=f"use another vLLM, or one of {known}")


@rule("GS204", "error")
def head_missing(subject: Subject) -> Iterator[Found]:
    """mtp without a draft looks for the head in the target, and Gemma 4's targets have none."""
    if subject.method == "mtp" and not subject.profile.draft:
        why = "without a draft vLLM looks for MTP layers in the target, and Gemma 4 has them in a checkpoint of its own"
        mend = "add draft: {model: google/gemma-4-…-it-assistant}, the one of this target's size"
        yield Found(path=("speculative", "method"), why=why, mend=mend)


@rule("GS205", "error")
def draft_parallelism(subject: Subject) -> Iterator[Found]:
    """Under model runner v1 a draft model is spread over as many GPUs as the target."""
    spec = subject.profile.speculative
    target = int(subject.value("--tensor-parallel-size") or 1)
    if not spec or spec.method != "draft_model" or subject.runner == "v2":
        return
    if spec.draft_tensor_parallel_size not in (None, target):
        why = (
            f"is {spec.draft_tensor_parallel_size} and the target's is {target}: model runner v1, which vLLM "
            f"{subject.vllm} uses here, wants them equal for draft_model"
        )
        yield Found(
            path=("speculative", "draft_tensor_parallel_size"), why=why, mend=f"write {target}, or leave it out"
        )


@rule("GS206", "error")
def async_scheduling(subject: Subject) -> Iterator[Found]:
    """What asynchronous scheduling does not go together with, when it is asked for."""
    spec, given = subject.profile.speculative, subject.argument("--async-scheduling")
    if not spec or not given or given.negated or (subject.runs(">=0.32") and subject.runner == "v2"):
        return
    if spec.disable_padded_drafter_batch:
        refused = "disable_padded_drafter_batch"
    elif spec.method in ("ngram", "suffix"):
        refused = spec.method
    else:
        return
    why = f"vLLM {subject.vllm} cannot schedule asynchronously with {refused}"
    yield Found(path=given.path, why=why, mend="leave async_scheduling out; vLLM then decides by itself")


@rule("GS207", "note")
def unpadded_batch(subject: Subject) -> Iterator[Found]:
    """An unpadded drafter batch switches asynchronous scheduling off."""
    spec = subject.profile.speculative
    if spec and spec.disable_padded_drafter_batch and subject.switched("--async-scheduling") is None:
        why = "with an unpadded drafter batch vLLM switches asynchronous scheduling off"
        yield Found(path=("speculative", "disable_padded_drafter_batch"), why=why, mend="leave it out unless it pays")


@rule("GS208", "error")
def synthetic(subject: Subject) -> Iterator[Found]:
    """Synthetic acceptance comes in exactly one form, which fits the number of tokens."""
    spec = subject.profile.speculative
    if not spec or spec.rejection_sample_method != "synthetic" or subject.runs("<0.20"):
        return
    rates, length, tokens = spec.synthetic_acceptance_rates, spec.synthetic_acceptance_length, _tokens(subject)
    if (rates is None) == (length is None):
        path, why = "rejection_sample_method", "synthetic wants exactly one of the two forms of acceptance"
    elif rates is not None and len(rates) != tokens:
        path, why = "synthetic_acceptance_rates", f"has {len(rates)} rates for {tokens} tokens"
    elif rates is not None and rates != sorted(rates, reverse=True):
        path, why = "synthetic_acceptance_rates", "a rate is larger than the one before it"
    elif length is not None and length > tokens + 1:
        path, why = "synthetic_acceptance_length", f"is {length:g}, and {tokens} tokens give at most {tokens + 1}"
    else:
        return
    mend = "give synthetic_acceptance_rates, one falling rate for each token, or synthetic_acceptance_length"
    yield Found(path=("speculative", path), why=why, mend=mend)


@rule("GS209", "warning", any_release=True)
def lossy(subject: Subject) -> Iterator[Found]:
    """Acceptance that does not keep the target's own answers."""
    spec = subject.profile.speculative
    method = spec.rejection_sample_method if spec else None
    if method in ("synthetic", "fly"):
        said = "accepts tokens by lot, for measuring" if method == "synthetic" else "accepts tokens loosely"
        why = f"{method} {said}: answers are not those of the target alone"
        yield Found(path=("speculative", "rejection_sample_method"), why=why, mend="leave it out to serve people")


@rule("GS210", "error")
def fly(subject: Subject) -> Iterator[Found]:
    """FLy looks at the acceptances after a token, so there must be some (SpeculativeConfig._verify_args, 0.33.0)."""
    spec = subject.profile.speculative
    if not spec or spec.rejection_sample_method != "fly":
        return
    tokens = _tokens(subject)
    if tokens < 2:
        why = "fly wants at least 2 tokens"
        yield Found(path=("speculative", "num_speculative_tokens"), why=why, mend="draft 2 tokens or more")
    elif spec.fly_window_size and spec.fly_window_size >= tokens:
        why = f"is {spec.fly_window_size}, and must be smaller than num_speculative_tokens, {tokens}"
        yield Found(path=("speculative", "fly_window_size"), why=why, mend=f"write {tokens - 1} or less")


@rule("GS211", "error")
def different_vocabularies(subject: Subject) -> Iterator[Found]:
    """Drafting over two vocabularies is greedy."""
    spec = subject.profile.speculative
    if not spec or not spec.use_heterogeneous_vocab:
        return
    for key, wrong in (
        ("draft_sample_method", spec.draft_sample_method not in (None, "greedy")),
        ("use_local_argmax_reduction", bool(spec.use_local_argmax_reduction) and subject.runs(">=0.33")),
    ):
        if wrong:
            why = f"vLLM {subject.vllm} does not take it together with use_heterogeneous_vocab"
            yield Found(path=("speculative", key), why=why, mend="leave it out")


@rule("GS212", "error")
def vocabulary(subject: Subject) -> Iterator[Found]:
    """A draft model with another vocabulary than the target's."""
    spec, target, draft = subject.profile.speculative, subject.target, subject.draft
    if not spec or spec.method != "draft_model" or spec.use_heterogeneous_vocab or not target or not draft:
        return
    if target.text.vocab_size != draft.text.vocab_size:
        why = f"its vocabulary has {draft.text.vocab_size} tokens, the target's {target.text.vocab_size}"
        mend = "use a draft of the same family, or use_heterogeneous_vocab: true (vLLM 0.25 and later)"
        yield Found(path=("draft", "model"), why=why, mend=mend)


@rule("GS213", "error")
def trained_steps(subject: Subject) -> Iterator[Found]:
    """A head that was trained for n tokens drafts n, or a multiple of them."""
    tokens, steps = _tokens(subject), _number(subject, "n_predict")
    if steps and subject.method in ("eagle", "eagle3", "mtp", "dflash") and tokens > steps and tokens % steps:
        why = f"is {tokens}; the draft was made for {steps} (n_predict), and vLLM takes multiples of that"
        path = ("speculative", "num_speculative_tokens")
        yield Found(path=path, why=why, mend=f"write {tokens // steps * steps} or {(tokens // steps + 1) * steps}")


@rule("GS214", "error")
def block_size(subject: Subject) -> Iterator[Found]:
    """DSpark heads draft a whole block; 0.26 and 0.27 refuse fewer tokens, since the text then is garbled."""
    size, tokens = _number(subject, "dspark_block_size"), _tokens(subject)
    if size and subject.method == "dspark" and subject.runs(">=0.26,<0.28") and tokens < size:
        why = f"is {tokens}, and the head's block has {size} tokens"
        yield Found(path=("speculative", "num_speculative_tokens"), why=why, mend=f"write {size}")


@rule("GS215", "error")
def adaptive_verification(subject: Subject) -> Iterator[Found]:
    """Adaptive verification is for DSpark in 0.28 and 0.29, and needs the draft's logits from 0.30 on."""
    spec = subject.profile.speculative
    if not spec or not spec.enable_adaptive_verification or spec.method == "dspark":
        return
    if subject.runs(">=0.28,<0.30"):
        why = f"vLLM {subject.vllm} verifies adaptively with dspark alone"
    elif subject.runs(">=0.30") and spec.use_local_argmax_reduction:
        why = "it needs the draft's logits, which use_local_argmax_reduction never gathers"
    else:
        return
    yield Found(path=("speculative", "enable_adaptive_verification"), why=why, mend="leave it out")


@rule("GS216", "error")
def context(subject: Subject) -> Iterator[Found]:
    """Contexts that are longer than a checkpoint was made for."""
    spec, limit = subject.profile.speculative, int(subject.value("--max-model-len") or 0)
    longest = subject.target.text.max_position_embeddings if subject.target else None
    if longest and limit > longest and subject.profile.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") != "1":
        why = f"is {limit}, and the target was made for {longest} tokens"
        yield Found(path=("serve", "max_model_len"), why=why, mend=f"write {longest} or less")
    drafted = subject.draft.text.max_position_embeddings if subject.draft else None
    if drafted and spec and spec.max_model_len and spec.max_model_len > drafted:
        why = f"is {spec.max_model_len}, and the draft was made for {drafted} tokens"
        yield Found(path=("speculative", "max_model_len"), why=why, mend=f"write {drafted} or less")


@rule("GS217", "warning")
def shortened_context(subject: Subject) -> Iterator[Found]:
    """0.33 lowers the target's context to the draft's (VllmConfig._limit_max_model_len_to_draft)."""
    spec, limit = subject.profile.speculative, int(subject.value("--max-model-len") or 0)
    if not spec or subject.method != "draft_model" or subject.runner == "v1" or subject.runs("<0.33"):
        return
    drafted = spec.max_model_len or (subject.draft.text.max_position_embeddings if subject.draft else None)
    if drafted and limit > drafted:
        why = f"the draft goes to {drafted} tokens, and vLLM {subject.vllm} lowers max_model_len from {limit} to that"
        key = ("speculative", "max_model_len") if spec.max_model_len else ("draft", "model")
        yield Found(path=key, why=why, mend=f"write serve.max_model_len: {drafted}, so that the profile says what runs")


@rule("GS218", "error")
def pipeline(subject: Subject) -> Iterator[Found]:
    """Pipeline parallelism and speculation, up to 0.29."""
    stages, method = int(subject.value("--pipeline-parallel-size") or 1), subject.method
    if stages < 2 or not method or subject.runs(">=0.30") or method in ("ngram", "suffix"):
        return
    given = subject.argument("--pipeline-parallel-size")
    path = given.path if given else ("serve",)
    if method == "mtp":
        why = f"vLLM {subject.vllm} gives the draft the same stages, and the MTP head cannot be cut into stages"
    elif method == "dflash" and subject.runner == "v2":
        why = f"vLLM {subject.vllm} refuses dflash with pipeline parallelism"
    else:
        why = f"vLLM {subject.vllm} gives the draft the same stages, while only the last one drafts"
        yield Found(path=path, why=why, mend="use tensor_parallel_size, or vLLM 0.30 or later", severity="warning")
        return
    yield Found(path=path, why=why, mend="use tensor_parallel_size, or vLLM 0.30 or later")


@rule("GS219", "error")
def expert_parallelism(subject: Subject) -> Iterator[Found]:
    """0.30.0 gives a draft without experts the target's expert parallelism (create_draft_parallel_config)."""
    given = subject.argument("--enable-expert-parallel")
    if given and not given.negated and subject.profile.draft and subject.runs(">=0.30,<0.31"):
        why = f"vLLM {subject.vllm} asks the draft for experts as well, and it has none"
        yield Found(path=given.path, why=why, mend="take it out, or run another release than 0.30.0")


@rule("GS220", "error")
def forced_runner(subject: Subject) -> Iterator[Found]:
    """VLLM_USE_V2_MODEL_RUNNER asks for a runner that cannot do it."""
    path = ("env", "VLLM_USE_V2_MODEL_RUNNER")
    if subject.forced_runner == "v2" and subject.runs(">=0.25") and subject.gives_way:
        why = f"asks for model runner v2, and {subject.gives_way}"
        yield Found(path=path, why=why, mend="take it out; vLLM then takes v1 by itself")
    if subject.forced_runner == "v1" and subject.method == "dspark":
        yield Found(path=path, why="asks for model runner v1, which has no dspark", mend="take it out")


def _since(method: str) -> str:
    return next(versions for _, taken, versions in _DETECTED if taken == method)


def _tokens(subject: Subject) -> int:
    spec = subject.profile.speculative
    return (spec.num_speculative_tokens if spec else None) or 0


def _number(subject: Subject, key: str) -> int | None:
    """A whole number of the draft's config.json."""
    value = subject.draft.config.get(key) if subject.draft else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


RULES: Final = (
    detected_method,
    made_for_another_method,
    method_for_gemma,
    head_missing,
    draft_parallelism,
    async_scheduling,
    unpadded_batch,
    synthetic,
    lossy,
    fly,
    different_vocabularies,
    vocabulary,
    trained_steps,
    block_size,
    adaptive_verification,
    context,
    shortened_context,
    pipeline,
    expert_parallelism,
    forced_runner,
)
