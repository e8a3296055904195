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


NAN, NEGATIVE_NAN = 0x7F, 0xFF
BROKEN = {(3, 1): NAN, (0, 0): NAN, (31, 3): NAN, (5, 2): NEGATIVE_NAN, (7, 0): NAN, (7, 1): NAN, (7, 2): NAN}
"""Of a matrix of scales: one in a row, one of the other sign, and all but one of a row."""
WHOLE = {(1, 0): 448.0, (1, 1): 288.0, (1, 2): 256.0, (2, 0): 0.001953125, (3, 0): 416.0}
"""Large and small scales that an exporter clamped or did not need to; they stay."""


def break_scales(scales, broken=None):
    """Give block scales the bits of NaN; return what they should be read as."""
    import torch

    for at, value in WHOLE.items():
        scales[at] = value
    expected = scales.clone()
    for at, bits in (BROKEN if broken is None else broken).items():
        scales.view(torch.uint8)[at] = bits
        expected[at] = 448.0
    return expected.float()


def linear_output(config, *, broken=None):
    """The output for one token, and a check that each NaN became 448 and nothing else changed."""
    import torch
    from vllm.model_executor.layers.linear import RowParallelLinear

    layer = RowParallelLinear(
        64, 32, bias=False, quant_config=config, prefix="model.o_proj", params_dtype=torch.float32
    )
    packed, scales = standin.random_weight(32, 64, seed=1)
    expected = break_scales(scales, broken)
    for name, value in {"weight": packed, "weight_scale": scales}.items():
        parameter = getattr(layer, name)
        parameter.weight_loader(parameter, value)
    layer.weight_scale_2.data.fill_(0.5)
    layer.input_scale.data.fill_(1.0)
    layer.quant_method.process_weights_after_loading(layer)
    result = layer.quant_method.apply(layer, torch.ones(1, 64))
    if not result.isnan().any():
        assert torch.equal(layer.weight_scale.float(), expected)
    return result


def experts_output(modelopt, config):
    """The output of two experts for a token each, and a check of the scales of both matrices of both."""
    import torch

    layer, method = standin.make_experts(modelopt.ModelOptNvFp4FusedMoE, config, experts=2, hidden=64, middle=32)
    expected = {}
    for name, columns in (("w13", 4), ("w2", 2)):
        scales = getattr(layer, f"{name}_weight_scale").data
        for expert, broken in enumerate(({(3, 1): NAN, (9, 0): NEGATIVE_NAN}, {(3, 0): NAN, (31, columns - 1): NAN})):
            whole = {(1, 0): 448.0, (1, 1): 288.0}
            for at, value in whole.items():
                scales[(expert, *at)] = value
            expected[name, expert] = scales[expert].float()
            for at, bits in broken.items():
                scales[expert].view(torch.uint8)[at] = bits
                expected[name, expert][at] = 448.0
    with patch.object(modelopt, "make_nvfp4_moe_kernel", method.make_kernel):
        method.process_weights_after_loading(layer)
    ids = torch.tensor([[0], [1]])
    result = method.moe_kernel.apply(torch.ones(2, 64), layer.w13_weight, layer.w2_weight, None, ids)
    if not result.isnan().any():
        for (name, expert), wanted in expected.items():
            assert torch.equal(getattr(layer, f"{name}_weight_scale")[expert].float(), wanted), f"{name} of {expert}"
    return result


def check_never_loaded(config) -> None:
    """A row of nothing but NaN was never loaded: it stays as it is, and 0.30 and later still refuse it."""
    try:
        assert linear_output(config, broken={(3,): NAN}).isnan().any()
    except RuntimeError as error:
        assert "was never loaded" in str(error), error
