"""GS2xx: several GPUs, and the model runner that is forced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gemmaspec.lint.finding import Found, rule
from gemmaspec.lint.subject import Subject


@rule("GS205", "error")
def draft_parallelism(subject: Subject) -> Iterator[Found]:
    """Under model runner v1 a draft model is spread over as many GPUs as the target."""
    spec = subject.profile.speculative
    target = subject.number("--tensor-parallel-size") or 1
    if not spec or subject.method != "draft_model" or subject.runner == "v2":
        return
    if spec.draft_tensor_parallel_size not in (None, target):
        why = (
            f"is {spec.draft_tensor_parallel_size} and the target's is {target}: model runner v1, which vLLM "
            f"{subject.vllm} uses here, wants them equal for draft_model"
        )
        yield Found(
            path=("speculative", "draft_tensor_parallel_size"), why=why, mend=f"write {target}, or leave it out"
        )


@rule("GS221", "error")
def heads(subject: Subject) -> Iterator[Found]:
    """Attention heads are dealt out evenly (ModelConfig.verify_with_parallel_config, every release)."""
    given, spec = subject.argument("--tensor-parallel-size"), subject.profile.speculative
    gpus = subject.number("--tensor-parallel-size") or 1
    if given and subject.target and subject.target.text.layers[0].heads % gpus:
        count = subject.target.text.layers[0].heads
        why = f"is {gpus}, and the target has {count} attention heads, which do not divide by it"
        yield Found(path=given.path, why=why, mend="write a number that divides both models' attention heads")
    drafts = (spec.draft_tensor_parallel_size if spec else None) or gpus
    if subject.draft and subject.draft.text.layers[0].heads % drafts:
        count = subject.draft.text.layers[0].heads
        why = f"has {count} attention heads, which do not divide by its tensor parallel size, {drafts}"
        yield Found(path=("draft", "model"), why=why, mend="use a tensor parallel size that divides them")


@rule("GS218", "error")
def pipeline(subject: Subject) -> Iterator[Found]:
    """Pipeline parallelism and speculation, up to 0.29."""
    stages, method = (subject.number("--pipeline-parallel-size") or 1), subject.method
    if stages < 2 or not method or subject.runs(">=0.30") or method in ("ngram", "suffix"):
        return
    given = subject.argument("--pipeline-parallel-size")
    path = given.path if given else ("serve",)
    if method == "mtp":
        why = f"vLLM {subject.vllm} gives the draft the same stages, and the MTP head cannot be cut into stages"
    elif method == "dflash" and subject.runner == "v2":
        why = f"vLLM {subject.vllm} refuses dflash with pipeline parallelism"
    elif method == "dspark":
        why = f"vLLM {subject.vllm} gives the draft the same stages, and a DSpark head cannot be cut into stages"
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


RULES: Final = (
    draft_parallelism,
    heads,
    pipeline,
    expert_parallelism,
    forced_runner,
)
