"""Makes the draft's configuration of a target with parallel experts, and looks what it asks of the draft."""

from types import SimpleNamespace
from unittest.mock import patch


def probe() -> tuple[bool, str]:
    from vllm.v1.worker.gpu.spec_decode.gemma4 import speculator

    target, draft = object(), SimpleNamespace(is_moe=False)
    attention = SimpleNamespace(backend=None)
    parallel = SimpleNamespace(
        enable_expert_parallel=True, enable_eplb=True, tensor_parallel_size=2, pipeline_parallel_size=1, rank=1
    )
    config = SimpleNamespace(model_config=target, parallel_config=parallel, attention_config=attention)
    drafter = object.__new__(speculator.Gemma4Speculator)
    drafter.vllm_config = config
    drafter.speculative_config = SimpleNamespace(
        draft_model_config=draft,
        draft_parallel_config=SimpleNamespace(
            **vars(parallel) | {"enable_expert_parallel": False, "enable_eplb": False}
        ),
        attention_backend=None,
    )

    def replaced(whole: SimpleNamespace, **changes: object) -> SimpleNamespace:
        made = SimpleNamespace(**vars(whole) | changes)
        model, how = getattr(made, "model_config", None), getattr(made, "parallel_config", None)
        if model is draft and how.enable_expert_parallel:
            raise ValueError(
                "Number of experts in the model must be greater than 0 when expert parallelism is enabled."
            )
        return made

    with patch.object(speculator, "replace", replaced):
        try:
            made = drafter._create_draft_vllm_config()
        except ValueError as error:
            return True, f"ValueError: {error}"
    assert made.model_config is draft
    assert (made.parallel_config.tensor_parallel_size, made.parallel_config.rank) == (2, 1)
    assert not made.parallel_config.enable_eplb
    assert parallel.enable_expert_parallel, "the target keeps its experts parallel"
    return False, "the draft's configuration asks for no parallel experts, and the target's still does"
