"""Does a layer of Gemma 4 compute norm, addition and norm one by one? vLLM's layers, with FAKES of attention and MLP.

On a CPU the patch's op computes as vLLM does, so results are the same bits; numbers.py has its kernel.
"""

from copy import deepcopy
from types import SimpleNamespace
from unittest.mock import patch

import torch

NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
WIDE = 96
LAYERS = 3


def probe():
    from vllm.model_executor.models import gemma4, gemma4_mtp

    torch.manual_seed(0)
    kinds = {
        "target": (gemma4.Gemma4DecoderLayer, target),
        "assistant": (gemma4_mtp.Gemma4MTPDecoderLayer, assistant),
    }
    with patch.object(gemma4, "get_pp_group", lambda: SimpleNamespace(is_first_rank=True, is_last_rank=True)):
        seen = {kind: look(gemma4, layer, run) for kind, (layer, run) in kinds.items()}
    calls = {one for _, one in seen.values()}
    assert calls == {4 * LAYERS + 1} or calls == {1}, seen
    text = ", ".join(f"{kind} {one}" for kind, (_, one) in seen.items())
    return calls != {1}, f"norms computed one by one in {LAYERS} layers: {text}"


def look(gemma4, kind, run):
    """Return what layers compute, and how many norms one by one; as released and fused it must be the same."""
    layers, last = [layer(kind) for _ in range(LAYERS)], norm()
    released, calls = run(layers, last)
    if not hasattr(gemma4, "fuse_norms"):
        return released, calls
    assert calls == 4 * LAYERS + 1
    check_guards(gemma4, layers, last)
    fused = deepcopy(layers)
    fuse(gemma4, fused, last, server())
    assert all(layer.fused_norms for layer in fused)
    again, calls = run(fused, last)
    assert all(torch.equal(one, other) for one, other in zip(released, again, strict=True))
    return again, calls


def target(layers, last):
    """Run vLLM's model over these layers; its hidden states between them are returned as well."""
    from vllm.model_executor.models.gemma4 import Gemma4Model

    class Model(Gemma4Model.__mro__[0]):
        def __init__(self):
            torch.nn.Module.__init__(self)

    model = Model()
    model.layers, model.norm, model.start_layer, model.end_layer = layers, last, 0, LAYERS
    model.embed_input_ids = lambda ids: states(len(ids))
    model.get_per_layer_inputs = model.project_per_layer_inputs = lambda *_: None
    model.fast_prefill_enabled = False
    model._set_aux_hidden_state_layers((1, 2, LAYERS))
    with counted() as calls:
        out, between = Gemma4Model.forward(model, torch.arange(5), torch.arange(5), None)
    return [out, *between], len(calls)


def assistant(layers, last):
    """Run vLLM's MTP draft over these layers."""
    from vllm.model_executor.models.gemma4_mtp import Gemma4MultiTokenPredictor

    model = object.__new__(Gemma4MultiTokenPredictor)
    torch.nn.Module.__init__(model)
    model.pre_projection = lambda both: (both[:, :WIDE], None)
    model.layers, model.norm, model.post_projection = torch.nn.ModuleList(layers), last, lambda out: (out, None)
    with counted() as calls:
        out = model(torch.arange(5), torch.arange(5), states(5), inputs_embeds=states(5))
    return list(out), len(calls)


def counted():
    """Return a context that lists the norms that are computed one by one."""
    from contextlib import contextmanager

    from vllm.model_executor.layers.layernorm import RMSNorm

    @contextmanager
    def counting():
        calls, native = [], RMSNorm.forward_native
        with patch.object(RMSNorm, "forward", lambda self, *given: calls.append(self) or native(self, *given)):
            yield calls

    return counting()


def norm():
    """Return an RMSNorm of random weights, which no configuration of vLLM made."""
    from vllm.model_executor.layers.layernorm import RMSNorm

    made = object.__new__(RMSNorm)
    torch.nn.Module.__init__(made)
    made.hidden_size, made.variance_epsilon, made.variance_size_override = WIDE, 1e-6, None
    made.has_weight = made.pass_weight = made.pass_weight_add = True
    made.weight = torch.nn.Parameter(torch.randn(WIDE).bfloat16())
    return made


def layer(kind):
    made = object.__new__(kind)
    torch.nn.Module.__init__(made)
    for name in NORMS:
        setattr(made, name, norm())
    mixed = torch.nn.Linear(WIDE, WIDE, bias=False, dtype=torch.bfloat16)
    made.self_attn = Attention(mixed)
    made.mlp, made.enable_moe_block, made.per_layer_input_gate = deepcopy(mixed), False, None
    made.layer_scalar = torch.rand(1).bfloat16()
    return made


class Attention(torch.nn.Module):
    """A FAKE: a matrix."""

    def __init__(self, mixed):
        super().__init__()
        self.mixed = mixed

    def forward(self, positions, hidden_states, **_):
        return self.mixed(hidden_states)


def states(rows):
    return torch.linspace(-3, 3, rows * WIDE).reshape(rows, WIDE).bfloat16()


def server(**changed):
    """Return the configuration of a server on which the patch was measured, with some of it changed."""
    from vllm.config import CompilationMode

    passes = {"fuse_norm_quant": False, "fuse_allreduce_rms": False}
    given = {
        **passes, "mode": CompilationMode.VLLM_COMPILE, "norms": ["native"], "tensor": 1, "pipeline": 1, "lora": None,
        "fast_prefill": False, "draft": SimpleNamespace(method="mtp"), **changed,
    }  # fmt: skip
    asked = SimpleNamespace(**{name: given[name] for name in passes})
    return SimpleNamespace(
        compilation_config=SimpleNamespace(mode=given["mode"], pass_config=asked),
        kernel_config=SimpleNamespace(ir_op_priority=SimpleNamespace(rms_norm=given["norms"])),
        parallel_config=SimpleNamespace(tensor_parallel_size=given["tensor"], pipeline_parallel_size=given["pipeline"]),
        lora_config=given["lora"],
        cache_config=SimpleNamespace(kv_sharing_fast_prefill=given["fast_prefill"]),
        speculative_config=given["draft"],
    )


def fuse(gemma4, layers, last, config, *, cuda=True, triton=True, invariant=False):
    with (
        patch.object(gemma4, "current_platform", SimpleNamespace(is_cuda=lambda: cuda)),
        patch.object(gemma4, "HAS_TRITON", triton),
        patch.object(gemma4, "envs", SimpleNamespace(VLLM_BATCH_INVARIANT=invariant)),
    ):
        gemma4.fuse_norms(config, layers, last)


def check_guards(gemma4, layers, last):
    """Whatever was not measured is computed as released."""
    from vllm.config import CompilationMode

    servers = [
        {"mode": CompilationMode.NONE}, {"fuse_norm_quant": True}, {"fuse_allreduce_rms": True},
        {"norms": ["vllm_c", "native"]}, {"norms": []}, {"tensor": 2}, {"pipeline": 2}, {"lora": "some"},
        {"fast_prefill": True}, *({"draft": SimpleNamespace(method=name)} for name in ("eagle3", "dflash", "dspark")),
    ]  # fmt: skip
    for changed in servers:
        check_released(gemma4, layers, last, server(**changed))
    for machine in ({"cuda": False}, {"triton": False}, {"invariant": True}):
        check_released(gemma4, layers, last, server(), **machine)
    own = {"enable_moe_block": True, "per_layer_input_gate": torch.nn.Identity(), "layer_scalar": torch.ones(1)}
    for name, value in own.items():
        check_released(gemma4, other(layers, lambda one, n=name, v=value: setattr(one, n, v)), last, server())
    plain = {
        "has_weight": False, "variance_size_override": 8, "variance_epsilon": 1e-5,
        "weight": torch.nn.Parameter(torch.ones(WIDE)), "__class__": type("Own", (type(last),), {}),
    }  # fmt: skip
    for name, value in plain.items():
        for which in NORMS:
            changed = other(layers, lambda one, w=which, n=name, v=value: setattr(getattr(one, w), n, v))
            check_released(gemma4, changed, last, server())


def other(layers, change):
    """Return layers of which the last is changed."""
    changed = deepcopy(layers)
    change(changed[-1])
    return changed


def check_released(gemma4, layers, last, config, **machine):
    fuse(gemma4, layers, last, config, **machine)
    assert not any(one.fused_norms for one in layers)
