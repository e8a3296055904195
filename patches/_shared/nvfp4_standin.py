"""What the NVFP4 probes put in place of GPU kernels: the same mathematics in float32, activations left unquantized.

Everything before and after the kernels is vLLM's: its linear layers, its experts' loader, its quantization methods.
"""

# mypy: ignore-errors
import contextlib
from types import SimpleNamespace
from unittest.mock import patch

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
GROUP = 16  # input channels that share one block scale


def random_weight(rows: int, columns: int, seed: int):
    """A packed weight and its block scales, as a checkpoint has them."""
    import torch

    random = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, generator=random)
    scales = torch.rand(rows, columns // GROUP, generator=random) + 0.5
    return packed, scales.to(torch.float8_e4m3fn)


def dequantized(packed, scales, factor):
    """The float32 matrix that a packed weight stands for."""
    import torch

    values = torch.tensor([*FP4, *(-value for value in FP4)])
    both = torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2).long()
    return values[both] * scales.float().repeat_interleave(GROUP, dim=-1) * factor


class Kernel:
    """A linear kernel."""

    def __init__(self, *_, **__) -> None:
        pass

    def input_quant_key(self):
        return "a key: this kernel takes quantized activations"

    def process_weights_after_loading(self, layer) -> None:
        pass

    def apply_weights(self, layer, x, bias=None):
        assert getattr(layer, "input_quant_key", None) is getattr(
            layer, "_input_quant_key", None
        ) is None or not hasattr(layer, "pre_quant_scale"), (
            "a fused kernel would quantize for this layer and leave pre_quant_scale out"
        )
        return x @ dequantized(layer.weight, layer.weight_scale, layer.weight_global_scale).T


class MarlinExperts:
    """Experts, by the name of those that leave the activation between the two products to a method."""

    def __init__(self, layer) -> None:
        self.layer = layer

    def process_weights_after_loading(self, layer) -> None:
        pass

    def activation(self, kind, output, input, **_) -> None:
        import torch

        gate, up = input.chunk(2, dim=-1)
        output.copy_(torch.nn.functional.gelu(gate, approximate="tanh") * up)


class OtherExperts(MarlinExperts):
    """Experts that quantize between the two products by themselves."""


class MoeKernel:
    """A modular kernel with one expert for each token."""

    experts, is_monolithic = MarlinExperts, False

    def __init__(self, layer) -> None:
        self.layer, self.fused_experts, self.shared = layer, self.experts(layer), None

    def apply(self, x, w13, w2, weights, ids, *, shared_experts_input=None, **_):
        import torch

        self.shared = shared_experts_input
        layer, rows = self.layer, []
        for token, expert in zip(x, ids.flatten().tolist(), strict=True):
            wide = token[None] @ dequantized(w13[expert], layer.w13_weight_scale[expert], 1.0).T
            middle = torch.empty(1, wide.shape[-1] // 2)
            self.fused_experts.activation("gelu", middle, wide)
            rows.append(middle @ dequantized(w2[expert], layer.w2_weight_scale[expert], 1.0).T)
        return torch.cat(rows)


class Monolithic(MoeKernel):
    """A kernel that routes by itself; what it was given is its result."""

    is_monolithic = True

    def apply_monolithic(self, x, *_, **__):
        return x


@contextlib.contextmanager
def stand_ins(*, rank: int = 0, ranks: int = 1):
    """Kernels replaced, and this process taken for one of several ranks; yields the module modelopt."""
    from vllm.model_executor import parameter
    from vllm.model_executor.layers import linear
    from vllm.model_executor.layers.quantization import modelopt

    kernels = {
        "select_nvfp4_linear_backend": lambda *_: "stand-in",  # 0.19
        "convert_to_nvfp4_linear_kernel_format": lambda backend, layer: None,
        "apply_nvfp4_linear": lambda backend, layer, x, bias: Kernel().apply_weights(layer, x, bias),
        "init_nvfp4_linear_kernel": Kernel,  # 0.20 to 0.29
        "select_linear_kernel": Kernel,  # from 0.30 on
        "convert_to_nvfp4_moe_kernel_format": _unchanged,
    }
    with contextlib.ExitStack() as stack:
        for name, replacement in kernels.items():
            if hasattr(modelopt, name):
                stack.enter_context(patch.object(modelopt, name, replacement))
        for module in (linear, parameter):
            stack.enter_context(patch.object(module, "get_tensor_model_parallel_rank", lambda: rank))
            stack.enter_context(patch.object(module, "get_tensor_model_parallel_world_size", lambda: ranks))
        yield modelopt


def _unchanged(*, w13, w13_scale, w13_scale_2, a13_scale, w2, w2_scale, w2_scale_2, a2_scale, **_):
    return w13, w13_scale, w13_scale_2, a13_scale, w2, w2_scale, w2_scale_2, a2_scale


def make_experts(
    method_class, quant_config, *, experts: int, hidden: int, middle: int, kernel=MoeKernel, rank=0, ranks=1
):
    """A layer of experts with its quantization method, not yet loaded; the layer is a plain module."""
    import torch

    method = object.__new__(method_class)
    method.quant_config = quant_config
    method.moe = SimpleNamespace(is_act_and_mul=True, tp_rank=rank, tp_size=ranks)
    method.use_global_sf = method.use_a16 = method.per_token_activation = False
    method.nvfp4_backend = method.experts_cls = "stand-in"
    layer = torch.nn.Module()
    layer.local_num_experts = layer.global_num_experts = experts
    layer.activation = layer.expert_map = layer.apply_router_weight_on_input = None
    layer.num_expert_group = layer.topk_group = layer.e_score_correction_bias = None
    layer.routed_scaling_factor = layer.routing_sink = layer.shared_experts = None
    layer._maybe_init_expert_routing_tables = layer._expert_routing_tables = lambda: None
    method.get_fused_moe_quant_config = lambda layer: None
    method.create_weights(
        layer=layer,
        num_experts=experts,
        hidden_size=hidden,
        intermediate_size_per_partition=middle,
        params_dtype=torch.float32,
        weight_loader=None,
        global_num_experts=experts,
    )
    for expert in range(experts):
        for name, rows, columns in (("w13", 2 * middle, hidden), ("w2", hidden, middle)):
            packed, scales = random_weight(rows, columns, seed=expert)
            getattr(layer, f"{name}_weight").data[expert] = packed
            getattr(layer, f"{name}_weight_scale").data[expert] = scales
    for name in ("w13", "w2"):
        for scale in ("weight_scale_2", "input_scale"):
            getattr(layer, f"{name}_{scale}").data.fill_(1.0)
    method.make_kernel = lambda **_: kernel(layer)
    return layer, method
