"""Loads a linear layer and a layer of experts with one NaN among their block scales and multiplies with them.

The kernels are stand-ins that compute the same in float32.
"""

from unittest.mock import patch

import nvfp4_standin as standin


def probe() -> tuple[bool, str]:
    with standin.stand_ins() as modelopt:
        config = modelopt.ModelOptNvFp4Config.from_config(
            {
                "quantization": {
                    "quant_algo": "NVFP4",
                    "group_size": 16,
                    "kv_cache_quant_algo": None,
                    "exclude_modules": [],
                }
            }
        )
        try:
            linear = linear_output(config)
        except RuntimeError as error:
            return True, f"RuntimeError: {error}"
        experts = experts_output(modelopt, config)
        bad = [name for name, result in {"a linear layer": linear, "experts": experts}.items() if result.isnan().any()]
        if bad:
            return True, f"nan in {' and '.join(bad)}"
        check_never_loaded(config)
    return False, "a NaN scale counts as 448"


def linear_output(config, *, broken=(3, 1)):
    """The output for one token, and a check that the NaN became 448 and nothing else changed."""
    import torch
    from vllm.model_executor.layers.linear import RowParallelLinear

    layer = RowParallelLinear(
        64, 32, bias=False, quant_config=config, prefix="model.o_proj", params_dtype=torch.float32
    )
    packed, scales = standin.random_weight(32, 64, seed=1)
    expected = scales.clone()
    scales[broken] = expected[broken] = float("nan")
    for name, value in {"weight": packed, "weight_scale": scales}.items():
        parameter = getattr(layer, name)
        parameter.weight_loader(parameter, value)
    layer.weight_scale_2.data.fill_(0.5)
    layer.input_scale.data.fill_(1.0)
    layer.quant_method.process_weights_after_loading(layer)
    result = layer.quant_method.apply(layer, torch.ones(1, 64))
    if not result.isnan().any():
        expected[broken] = 448.0
        assert torch.equal(layer.weight_scale.float(), expected.float())
    return result


def experts_output(modelopt, config):
    import torch

    layer, method = standin.make_experts(modelopt.ModelOptNvFp4FusedMoE, config, experts=2, hidden=64, middle=32)
    layer.w13_weight_scale.data[1, 3, 1] = float("nan")
    layer.w2_weight_scale.data[1, 3, 1] = float("nan")
    with patch.object(modelopt, "make_nvfp4_moe_kernel", method.make_kernel):
        method.process_weights_after_loading(layer)
    ids = torch.tensor([[0], [1]])
    return method.moe_kernel.apply(torch.ones(2, 64), layer.w13_weight, layer.w2_weight, None, ids)


def check_never_loaded(config) -> None:
    """A row of nothing but NaN was never loaded: it stays as it is, and 0.30 and later still refuse it."""
    try:
        assert linear_output(config, broken=(3,)).isnan().any()
    except RuntimeError as error:
        assert "was never loaded" in str(error), error
