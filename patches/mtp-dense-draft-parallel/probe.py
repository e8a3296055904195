"""Loads the draft of a target with parallel experts, as far as its configuration, and looks what it asks of the draft.

vLLM's checks of a configuration are a stand-in: a model without experts may not have parallel ones.
"""

import contextlib
from types import SimpleNamespace
from unittest.mock import patch


class Loaded(Exception):
    """The configuration has come as far as it matters here: the draft is built from it next."""


def probe() -> tuple[bool, str]:
    for size in (2, 1):
        try:
            check(size)
        except ValueError as error:
            return True, f"ValueError: {error}"
    return False, "the draft's configuration asks for no parallel experts, and the target's still does"


def check(size: int) -> None:
    """Check the configuration of the draft beside a target on so many ranks."""
    parallel = SimpleNamespace(
        enable_expert_parallel=True, enable_eplb=True, tensor_parallel_size=size, pipeline_parallel_size=1, rank=1
    )
    target, draft = object(), SimpleNamespace(is_moe=False)
    config = SimpleNamespace(
        model_config=target, parallel_config=parallel, attention_config=SimpleNamespace(backend="TRITON_ATTN")
    )
    before = dict(vars(parallel))
    made = built_from(config, draft)
    assert made.model_config is draft
    wanted = {**before, "enable_expert_parallel": False, "enable_eplb": False}
    assert vars(made.parallel_config) == wanted, made.parallel_config
    assert made.attention_config.backend == "TRITON_ATTN", "the target's backend"
    assert config.parallel_config is parallel, "the target keeps its experts parallel"
    assert vars(parallel) == before, "the target keeps its experts parallel"
    assert config.model_config is target


def built_from(config, draft):
    """Return the configuration that the draft is built from."""
    from vllm.v1.worker.gpu.spec_decode.gemma4 import speculator

    drafter = object.__new__(speculator.Gemma4Speculator)
    drafter.vllm_config = config
    own = {**vars(config.parallel_config), "enable_expert_parallel": False, "enable_eplb": False, "rank": 0}
    drafter.speculative_config = SimpleNamespace(
        draft_model_config=draft,
        draft_parallel_config=SimpleNamespace(**own),
        draft_load_config=None,
        attention_backend=None,
    )
    given = []

    def replaced(whole: SimpleNamespace, **changes: object) -> SimpleNamespace:
        made = SimpleNamespace(**vars(whole) | changes)
        model, how = getattr(made, "model_config", None), getattr(made, "parallel_config", None)
        if model is draft and how.enable_expert_parallel:
            raise ValueError(
                "Number of experts in the model must be greater than 0 when expert parallelism is enabled."
            )
        return made

    def get_model(*, vllm_config, **_):
        given.append(vllm_config)
        raise Loaded

    with (
        patch.object(speculator, "replace", replaced),
        patch.object(speculator, "get_model", get_model),
        patch.object(speculator, "get_draft_load_config", lambda _: None, create=True),
        contextlib.suppress(Loaded),
    ):
        drafter.load_draft_model(None, set())
    (made,) = given
    return made
