"""Reads the configs of an NVFP4_AWQ checkpoint, loads linear layers and experts with pre_quant_scale, and multiplies.

Results are compared with the mathematics: (x * pre_quant_scale) @ weight, and for experts also with the second factor
between their two products. The kernels are stand-ins that compute in float32; loading, tensor parallelism (both ranks
of two) and refusals are vLLM's and the patch's own code.
"""

from types import SimpleNamespace
from unittest.mock import patch

import nvfp4_standin as standin

ALGORITHM = {"quant_algo": "NVFP4_AWQ", "group_size": 16, "kv_cache_quant_algo": None, "exclude_modules": []}


def probe() -> tuple[bool, str]:
    from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config

    try:
        config = ModelOptNvFp4Config.from_config({"quantization": ALGORITHM})
        convert_legacy()
    except ValueError as error:
        return True, f"ValueError: {error}"
    assert config.get_name() == "modelopt_fp4"
    check_others_unchanged(ModelOptNvFp4Config)
    check_fused(config)
    check_rows(config)
    check_refused(config)
    check_experts(config)
    check_ranks(config)
    check_monolithic(config)
    check_refused_experts(config)
    check_marlin()
    return False, "linear layers and experts multiply as (x * pre_quant_scale) @ weight"


def convert_legacy() -> None:
    """The other place that knows algorithms by name: a config.json with ModelOpt's old layout."""
    from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase as Convertor

    config = SimpleNamespace(quantization_config={"producer": {"name": "modelopt"}, "quantization": {**ALGORITHM}})
    converted = Convertor._normalize_quantization_config(object.__new__(Convertor), config)
    assert converted["quant_method"] == "modelopt_fp4"


def check_others_unchanged(config_class) -> None:
    plain = config_class.from_config({"quantization": {**ALGORITHM, "quant_algo": "NVFP4"}})
    assert type(plain) is config_class, type(plain)


def load(layer, parts) -> None:
    """Give a layer its weights as a model does; `parts` is a shard's name, its rows, seed and factor (or None)."""
    for shard, rows, seed, factor in parts:
        packed, scales = standin.random_weight(rows, layer.input_size, seed)
        tensors = {"weight": packed, "weight_scale": scales, **scalars(), "pre_quant_scale": factor}
        for name, tensor in tensors.items():
            parameter = getattr(layer, name)
            if tensor is not None:
                parameter.weight_loader(parameter, tensor, *([] if shard is None else [shard]))
    layer.quant_method.process_weights_after_loading(layer)


def scalars() -> dict:
    import torch

    return {"weight_scale_2": torch.tensor(0.25), "input_scale": torch.tensor(1.0)}


def factor(size: int):
    """A pre_quant_scale that bfloat16 and float32 hold exactly."""
    import torch

    return 2.0 ** (torch.arange(size) % 5 - 2)


def reference(x, parts, columns: int):
    """(x * factor) @ weight for all parts of a layer, side by side."""
    import torch

    weights = (standin.dequantized(*standin.random_weight(rows, columns, seed), 0.25) for _, rows, seed, _ in parts)
    return torch.cat([(x * parts[0][3]) @ weight.T for weight in weights], dim=-1)


def qkv(config, **options):
    import torch
    from vllm.model_executor.layers.linear import QKVParallelLinear

    shape = {"hidden_size": 64, "head_size": 16, "total_num_heads": 2, "total_num_kv_heads": 2}
    return QKVParallelLinear(
        **shape, bias=False, quant_config=config, prefix="model.qkv_proj", params_dtype=torch.float32, **options
    )


def check_fused(config) -> None:
    """q, k and v with one factor, and with none at all."""
    import torch

    with standin.stand_ins():
        x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
        for scale in (factor(64), None):
            parts = [(shard, 32, seed, scale) for seed, shard in enumerate("qkv")]
            layer = qkv(config)
            load(layer, parts)
            expected = reference(x, [(*part[:3], 1.0 if scale is None else scale) for part in parts], 64)
            assert torch.allclose(layer.quant_method.apply(layer, x), expected, rtol=1e-5), "q, k and v"


def check_rows(config) -> None:
    """A row-parallel layer on two ranks: each takes its input channels' part of the factor; the sum is the result."""
    import torch
    from vllm.model_executor.layers.linear import RowParallelLinear

    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    parts, total = [(None, 32, 7, factor(64))], torch.zeros(3, 32)
    for rank in (0, 1):
        with standin.stand_ins(rank=rank, ranks=2):
            layer = RowParallelLinear(
                64, 32, bias=False, quant_config=config, prefix="model.o_proj", params_dtype=torch.float32
            )
            load(layer, parts)
            total += layer.quant_method.apply(layer, x.chunk(2, dim=-1)[rank])
    assert torch.allclose(total, reference(x, parts, 64), rtol=1e-4, atol=1e-4), "two ranks"


def check_refused(config) -> None:
    """Different factors for q and k, or one for q alone, have no right result."""
    scales = {"different": {"q": factor(64), "k": 2 * factor(64), "v": factor(64)}, "missing": {"q": factor(64)}}
    for word, given in scales.items():
        with standin.stand_ins():
            layer = qkv(config)
            refuse(lambda layer=layer, given=given: load(layer, [(s, 32, 1, given.get(s)) for s in "qkv"]), word)


def refuse(call, word: str) -> None:
    """Call what vLLM has to refuse, whatever its words are."""
    try:
        call()
    except (ValueError, NotImplementedError):
        return
    raise AssertionError(f"{word} was not refused")


def experts(config, first, second, *, kernel=None, rank=0, ranks=1):
    """Two experts, loaded; `first` and `second` give an expert's factors for gate/up and for down."""
    from vllm.model_executor.layers.quantization import modelopt

    method_class = type(config)(is_checkpoint_nvfp4_serialized=True, **unset(config)).FusedMoEMethodCls
    layer, method = standin.make_experts(
        method_class, config, experts=2, hidden=64, middle=32, kernel=kernel or standin.MoeKernel,
        rank=rank, ranks=ranks,
    )  # fmt: skip
    for expert in (0, 1):
        for name, shard, scale in (("w13", "w1", first), ("w13", "w3", first), ("w2", "w2", second)):
            parameter, value = getattr(layer, f"{name}_pre_quant_scale"), scale(expert)
            if value is not None:
                parameter.weight_loader(
                    param=parameter,
                    loaded_weight=value,
                    weight_name=f"experts.{name}_pre_quant_scale",
                    shard_id=shard,
                    expert_id=expert,
                    return_success=True,
                )
    with patch.object(modelopt, "make_nvfp4_moe_kernel", method.make_kernel):
        method.process_weights_after_loading(layer)
    return layer, method


def unset(config) -> dict:
    """Arguments that every release's config takes besides the one that says it is serialized."""
    return {"kv_cache_quant_algo": None, "exclude_modules": [], "group_size": config.group_size}


def check_experts(config) -> None:
    """Both factors, then only the first, then none."""
    import torch

    first, second = factor(64), factor(32)
    for given in ((first, second), (first, None), (None, None)):
        with standin.stand_ins():
            layer, method = experts(config, lambda _, given=given: given[0], lambda _, given=given: given[1])
            x = torch.randn(2, 64, generator=torch.Generator().manual_seed(2))
            ids = torch.tensor([[1], [0]])
            found = method.apply(layer=layer, x=x, topk_weights=None, topk_ids=ids, **others(method))
        assert method.moe_kernel.shared is x, "what shared experts read is not scaled"
        ones = [torch.ones(()) if scale is None else scale for scale in given]
        assert torch.allclose(found, experts_reference(layer, x, ids, *ones), rtol=1e-4, atol=1e-4), given


def check_ranks(config) -> None:
    """On each of two ranks an expert's second factor is that of the rank's own channels."""
    import torch

    first, second = factor(64), 2.0 ** (torch.arange(64) // 32 + torch.arange(64) % 3 - 1)
    for rank in (0, 1):
        with standin.stand_ins(rank=rank, ranks=2):
            layer, method = experts(config, lambda _: first, lambda _: second, rank=rank, ranks=2)
            x = torch.randn(2, 64, generator=torch.Generator().manual_seed(3))
            ids = torch.tensor([[1], [0]])
            found = method.apply(layer=layer, x=x, topk_weights=None, topk_ids=ids, **others(method))
        wanted = experts_reference(layer, x, ids, first, second.chunk(2)[rank])
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4), f"experts of rank {rank}"


def check_monolithic(config) -> None:
    """A kernel that routes by itself reads the scaled activation too."""
    import inspect

    import torch

    with standin.stand_ins():
        layer, method = experts(config, lambda _: factor(64), lambda _: None, kernel=standin.Monolithic)
        later = {"input_ids"} & {*inspect.signature(type(method).__mro__[1].apply_monolithic).parameters}
        found = method.apply_monolithic(layer=layer, x=torch.ones(2, 64), router_logits=None, **dict.fromkeys(later))
    assert torch.equal(found, factor(64).expand(2, 64)), found


def others(method) -> dict:
    """Arguments of apply() that came later than vLLM 0.19."""
    import inspect

    inherited = inspect.signature(type(method).__mro__[1].apply).parameters
    return {name: None for name in ("shared_experts", "shared_experts_input") if name in inherited}


def experts_reference(layer, x, ids, first, second):
    import torch

    rows = []
    for token, expert in zip(x, ids.flatten().tolist(), strict=True):
        w13, w2 = (
            standin.dequantized(*standin.random_weight(rows_, columns, expert), 1.0)
            for rows_, columns in ((64, 64), (64, 32))
        )
        gate, up = ((token * first)[None] @ w13.T).chunk(2, dim=-1)
        rows.append(torch.nn.functional.gelu(gate, approximate="tanh") * up * second @ w2.T)
    return torch.cat(rows)


def check_refused_experts(config) -> None:
    """Different factors, one that an expert lacks, and kernels with no place for the second factor."""
    first, second = factor(64), factor(32)

    class Other(standin.MoeKernel):
        experts = standin.OtherExperts

    cases = {
        "different": (lambda expert: first * (1 + expert), lambda _: None, {}),
        "missing": (lambda expert: None if expert else first, lambda _: None, {}),
        "Marlin": (lambda _: first, lambda _: second, {"kernel": Other}),
    }
    for word, (one, two, options) in cases.items():
        with standin.stand_ins():
            refuse(lambda one=one, two=two, options=options: experts(config, one, two, **options), word)


def check_marlin() -> None:
    """The real Marlin experts leave the activation to their method; without its kernels that can only be read."""
    import inspect

    try:
        from vllm.model_executor.layers.fused_moe.experts.marlin_moe import MarlinExperts
    except ModuleNotFoundError:
        from vllm.model_executor.layers.fused_moe.fused_marlin_moe import MarlinExperts
    assert "activation_func=self.activation," in inspect.getsource(MarlinExperts)
