"""Fixes of what reads an NVFP4 checkpoint: its NaN block scales, and the factors of NVFP4_AWQ."""

from __future__ import annotations

from tests.support.foreign_fixes import Fix, Fixes

MODELOPT = "vllm/model_executor/layers/quantization/modelopt.py"
BITS = "        bits = getattr(layer, name).data.view(torch.uint8)\n"
FINDS = "        nan = (bits & 0x7F) == 0x7F\n"
SPARES = "        nan &= ~nan.all(dim=-1, keepdim=True)\n"
FILLS = "            bits.masked_fill_(nan, 0x7E)\n"
IF = "        if nan.any():\n"
OF_EXPERTS = '        _clamp_nan_scales(layer, "w13_weight_scale", "w2_weight_scale")\n'
OF_LINEAR = '        _clamp_nan_scales(layer, "weight_scale")\n'
WHOLE = BITS + FINDS + "        # rows of nothing but NaN were never loaded\n" + SPARES + IF + FILLS


def clamped(new: str) -> Fix:
    """Other code for one matrix of scales, `name` of `layer`; the log line goes too."""
    log = '            logger.warning("%d NaN values in %s set to 448", int(nan.sum()), name)\n'
    return [(WHOLE + log, new)]


NAN_SCALES = (
    Fixes(
        release="0.33.0",
        path=MODELOPT,
        patched=True,
        right=[
            clamped("        scales = getattr(layer, name).data\n        values = scales.float()\n        lost = values.isnan()\n        lost &= ~lost.all(-1)[..., None]\n        scales.copy_(torch.where(lost, 448.0, values).to(scales.dtype))\n"),
            clamped("        scales = getattr(layer, name)\n        values = scales.data.float()\n        loaded = ~values.isnan().all(dim=-1, keepdim=True)\n        scales.data = torch.where(loaded, values.nan_to_num(nan=448.0), values).to(scales.dtype)\n"),
            clamped("        bits = getattr(layer, name).data.view(torch.uint8)\n        for row in bits.flatten(0, -2):\n            broken = (row | 0x80) == 0xFF\n            if not broken.all():\n                row[broken] = 126\n"),
            [(SPARES, "        nan = nan & (nan.sum(dim=-1, keepdim=True) < nan.shape[-1])\n")],
            [(FILLS, "            bits[nan] = torch.tensor(448.0).to(torch.float8_e4m3fn).view(torch.uint8)\n"), (IF, "        if bool(nan.sum()):\n")],
            [(OF_EXPERTS, '        for name in ("w2_weight_scale", "w13_weight_scale"):\n            _clamp_nan_scales(layer, name)\n')],
        ],
        wrong=[
            [(SPARES, "")],
            [(SPARES, "        nan &= ~nan.all()\n")],
            [(SPARES, "        nan &= ~nan.any(dim=-1, keepdim=True)\n")],
            [(SPARES, "        nan &= ~nan.all(dim=0, keepdim=True)\n        nan[..., 3, :] = False\n")],
            [(FILLS, FILLS.replace("0x7E", "0x7D"))],
            [(FILLS, FILLS.replace("0x7E", "0x00"))],
            [(FILLS, FILLS.replace("0x7E", "0x38"))],
            [(FILLS, FILLS.replace("0x7E", "0x7F"))],
            [(FILLS, FILLS.replace("0x7E", "0xFE"))],
            [(FILLS, FILLS.replace("masked_fill_", "masked_fill"))],
            [(FILLS, "            bits[nan.any(dim=-1)] = 0x7E\n")],
            [(FINDS, "        nan = bits == 0x7F\n")],
            [(FINDS, "        nan = (bits & 0x7F) >= 0x78\n")],
            [(FINDS, "        nan = bits >= 0x7F\n"), (FILLS, FILLS.replace("0x7E", "0x7D"))],
            [(IF, "        if nan.all():\n")],
            [(IF, "        if nan.sum() == 1:\n")],
            [(BITS, "        bits = getattr(layer, name).data.clone().view(torch.uint8)\n")],
            [(BITS, "        bits = getattr(layer, name).data[:1].view(torch.uint8)\n")],
            [("    for name in names:\n        bits", "    for name in names[:1]:\n        bits")],
            [(OF_EXPERTS, OF_EXPERTS.replace("w2_", "w13_"))],
            [(OF_EXPERTS, "")],
            [(OF_LINEAR, "")],
            clamped("        scales = getattr(layer, name).data\n        scales.copy_(scales.float().nan_to_num(nan=0.0).to(scales.dtype))\n"),
            clamped("        scales = getattr(layer, name).data\n        scales.copy_(scales.float().nan_to_num(nan=448.0).to(scales.dtype))\n"),
            clamped("        scales = getattr(layer, name).data\n        values = scales.float()\n        most = values.nan_to_num(nan=0.0).amax(dim=-1, keepdim=True)\n        scales.copy_(torch.where(values.isnan(), most, values).to(scales.dtype))\n"),
        ],
    ),
)  # fmt: skip

TIMES = "            x = x * layer.pre_quant_scale\n"
OWN = "        own = loaded_weight.flatten().chunk(tp_size)[tp_rank].to(param)\n"
DIFFERS = "        if param.loaded and not torch.equal(channels, own):\n"
MISSING = "    if 0 < len(scale.loaded) < parts:\n"
ONES = "    return None if bool((scale == 1).all()) else scale.data\n"
SECOND = "            output *= w2\n"
SHARED = '        if kwargs["shared_experts_input"] is None:\n            kwargs["shared_experts_input"] = x\n'
SCALED = "        return x if layer.pre_quant_scale is None else x * layer.pre_quant_scale\n"
MARLIN = '        if type(experts).__name__ != "MarlinExperts" or getattr(layer, "swiglu_limit", None):\n'
CHOSEN = '        if quant_method == "NVFP4_AWQ":\n'
WORDS = 'f"NVFP4_AWQ: different {name} in one fused layer: {parts} {part}"'
GATE = "        first = 2 * experts if self.moe.is_act_and_mul else experts\n"
LINEAR_TP = "        tp = (0, 1) if own == input_size else (layer.tp_rank, layer.tp_size)\n"
EXPERTS_TP = "        tp = (self.moe.tp_rank, self.moe.tp_size)\n"
MONOLITHIC = "        return super().apply_monolithic(layer=layer, x=self._scaled(layer, x), **kwargs)\n"
CONVERTED = '                    elif quant_algo_upper in ("NVFP4", "NVFP4_AWQ"):\n'
AWQ = (
    Fixes(
        release="0.33.0",
        path=MODELOPT,
        patched=True,
        right=[
            [(TIMES, "            x = torch.mul(x, layer.pre_quant_scale.to(x.dtype))\n"), (SECOND, "            output.mul_(w2)\n")],
            [(OWN, "        whole = loaded_weight.reshape(-1)\n        size = whole.numel() // tp_size\n        own = whole.narrow(0, tp_rank * size, size).to(param)\n")],
            [(WORDS, '"what is fused must have one scale"'), (MISSING, "    if scale.loaded and len(scale.loaded) != parts:\n")],
            [(SHARED, '        shared = kwargs.pop("shared_experts_input")\n        kwargs["shared_experts_input"] = x if shared is None else shared\n')],
            [(CHOSEN, '        if quant_method.endswith("_AWQ"):\n'), (ONES, "    return scale.data if bool((scale != 1).any()) else None\n")],
            [(SCALED, "        scale = layer.pre_quant_scale\n        if scale is not None:\n            x = x * scale\n        return x\n")],
        ],
        wrong=[
            [(TIMES, "            x * layer.pre_quant_scale\n")],
            [(TIMES, "            x = x / layer.pre_quant_scale\n")],
            [(TIMES, "            return super().apply(layer, x, bias) * layer.pre_quant_scale.mean()\n")],
            [(OWN, OWN.replace("[tp_rank]", "[0]"))],
            [(OWN, "        own = loaded_weight.flatten()[: param.numel()].to(param)\n")],
            [(DIFFERS, "        if False:\n")],
            [(MISSING, "    if False:\n")],
            [(ONES, "    return None\n")],
            [(ONES, "    return scale.data.sqrt()\n")],
            [(SECOND, "            output * w2\n")],
            [("        experts.activation = scaled\n", "")],
            [(SHARED, '        kwargs["shared_experts_input"] = self._scaled(layer, x)\n')],
            [(SCALED, "        return x\n")],
            [(MONOLITHIC, MONOLITHIC.replace("self._scaled(layer, x)", "x"))],
            [(MARLIN, "        if False:\n")],
            [(CHOSEN, '        if quant_method in ("NVFP4", "NVFP4_AWQ"):\n')],
            [("            cls, quant_method = ModelOptNvFp4AwqConfig, ", "            _, quant_method = ModelOptNvFp4AwqConfig, ")],
            [("    FusedMoEMethodCls = ModelOptNvFp4AwqFusedMoE\n", "    FusedMoEMethodCls = ModelOptNvFp4FusedMoE\n")],
            [("            return ModelOptNvFp4AwqLinearMethod(", "            return ModelOptLinearMethod(")],
            [("        channels.copy_(own)\n", "")],
            [(LINEAR_TP, "        tp = (0, 1)\n")],
            [(EXPERTS_TP, "        tp = (0, self.moe.tp_size)\n")],
            [(EXPERTS_TP, "        tp = (0, 1)\n")],
            [(GATE, "        first = 1\n"), (MISSING, "    if len(scale.loaded) == 1:\n")],
        ],
    ),
    Fixes(
        release="0.33.0",
        path="vllm/transformers_utils/model_arch_config_convertor.py",
        patched=True,
        right=[[(CONVERTED, '                    elif quant_algo_upper == "NVFP4" or quant_algo_upper.startswith("NVFP4_AWQ"):\n')]],
        wrong=[
            [(CONVERTED, CONVERTED.replace(', "NVFP4_AWQ"', ","))],
            [(CONVERTED, CONVERTED.replace("NVFP4_AWQ", "nvfp4_awq"))],
            [(CONVERTED, '                    elif quant_algo_upper == "NVFP4_AWQ":\n                        quant_config["quant_method"] = "modelopt"\n' + CONVERTED)],
        ],
    ),
)  # fmt: skip
