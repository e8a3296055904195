"""Fixes of what a CPU gives the rejection sampler: temperature, top_k and top_p of each drafted token."""

from __future__ import annotations

from tests.support.foreign_fixes import Fix, Fixes, indented

CALL = """\
    torch.ops._C.expand_kernel_impl(
        _ensure_int64(output),
        _ensure_int64(input_val),
        _ensure_int64(cu_num_tokens),
        replace_from,
        replace_to,
    )
"""
LENGTHS = "lengths = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))\n"
REPLACED = "values = torch.where(input_val == replace_from, replace_to, input_val)\n"
WRITTEN = "output.copy_(torch.repeat_interleave(values, lengths))\n"


def expand(code: str) -> Fix:
    return [(CALL, indented(code, 4))]


_OF_KERNEL = Fixes(
    release="0.33.0",
    path="vllm/utils/cpu_triton_utils.py",
    right=[
        expand("starts = torch.cat([cu_num_tokens.new_zeros(1), cu_num_tokens[:-1]])\nvalues = input_val.masked_fill(input_val == replace_from, replace_to)\noutput[:] = values.repeat_interleave(cu_num_tokens - starts)"),
        expand("start = 0\nfor value, end in zip(input_val.tolist(), cu_num_tokens.tolist()):\n    output[start:end] = replace_to if value == replace_from else value\n    start = end"),
        expand("rows = torch.bucketize(torch.arange(len(output)), cu_num_tokens, right=True)\nvalues = input_val[rows]\nvalues[values == replace_from] = replace_to\noutput.copy_(values)"),
        expand("rows = torch.empty(len(output), dtype=torch.int64)\ntorch.ops._C.expand_kernel_impl(rows, torch.arange(len(input_val)), _ensure_int64(cu_num_tokens), -1, -1)\nvalues = input_val[rows]\noutput.copy_(torch.where(values == replace_from, torch.full_like(values, replace_to), values))"),
        expand("ends = _ensure_int64(cu_num_tokens)\nat = torch.searchsorted(ends, torch.arange(output.shape[0], dtype=torch.int64), right=True)\ntorch.index_select(input_val, 0, at, out=output)\noutput.masked_fill_(output == replace_from, replace_to)"),
    ],
    wrong=[
        expand("out = _ensure_int64(output)\ntorch.ops._C.expand_kernel_impl(out, _ensure_int64(input_val), _ensure_int64(cu_num_tokens), replace_from, replace_to)\noutput.copy_(out)"),
        expand(LENGTHS + "output.copy_(torch.repeat_interleave(input_val, lengths))"),
        expand("lengths = cu_num_tokens\n" + REPLACED + "output.copy_(torch.repeat_interleave(values, lengths)[:len(output)])"),
        expand("lengths = torch.diff(cu_num_tokens, prepend=cu_num_tokens[:1])\n" + REPLACED + WRITTEN),
        expand(LENGTHS + REPLACED.replace("==", "!=") + WRITTEN),
        expand(LENGTHS + REPLACED.replace("input_val)", "input_val.round())") + WRITTEN),
        expand(LENGTHS + REPLACED + "output = torch.repeat_interleave(values, lengths)"),
        expand(LENGTHS + "input_val[input_val == replace_from] = replace_to\noutput.copy_(torch.repeat_interleave(input_val, lengths))"),
        expand(LENGTHS + REPLACED.replace("input_val)", "input_val.half())") + WRITTEN),
        expand("if output.is_floating_point():\n" + indented(LENGTHS + REPLACED + WRITTEN, 4) + "else:\n" + CALL),
        expand("if not output.is_floating_point():\n" + indented(LENGTHS + REPLACED + WRITTEN, 4) + "else:\n" + CALL),
        expand(LENGTHS + REPLACED.replace("replace_to,", "1,") + WRITTEN),
        expand(LENGTHS + "values = input_val.clamp(min=replace_to)\n" + WRITTEN),
        expand(LENGTHS + REPLACED + WRITTEN.replace("values", "values.flip(0)")),
        expand(LENGTHS + REPLACED + WRITTEN.replace("lengths)", "lengths.clamp(min=1))[:len(output)]")),
        expand("output.fill_(input_val[0].item())\noutput.masked_fill_(output == replace_from, replace_to)"),
        expand(REPLACED + "output.copy_(values.repeat_interleave(len(output) // len(values)))"),
        expand(LENGTHS + "lengths = lengths.clamp(max=MAX_NUM_TOKENS)\n" + REPLACED + "found = torch.repeat_interleave(values, lengths)\noutput[:len(found)] = found"),
        expand(LENGTHS + REPLACED + "scale = 1000\nout = torch.repeat_interleave((values * scale).long(), lengths)\noutput.copy_(out / scale)"),
        expand(LENGTHS + REPLACED + "if replace_from == replace_to:\n    values = _ensure_int64(values)\n" + WRITTEN),
    ],
)  # fmt: skip
_X = "        expanded_x,\n        x,\n        cu_num_tokens,\n        replace_from,\n        replace_to,\n"
_OF_CALLER = Fixes(
    release="0.33.0",
    path="vllm/v1/sample/rejection_sampler.py",
    patched=True,
    right=[],
    wrong=[
        [(_X, _X.replace("x,\n        cu", "x.long(),\n        cu"))],
        [(_X, _X.replace("        expanded_x,", "        expanded_x.clone(),"))],
        [(_X, _X.replace("replace_from,\n        replace_to", "replace_to,\n        replace_from"))],
        [("        replace_from=GREEDY_TEMPERATURE,\n        replace_to=1,\n", "")],
        [("    expanded_x = x.new_empty(num_tokens)", "    expanded_x = x.new_empty(num_tokens, dtype=torch.int64)")],
        [("    logits.div_(temperature.unsqueeze(-1))\n", "    logits.mul_(temperature.unsqueeze(-1))\n")],
        [("    return apply_top_k_top_p(logits, top_k, top_p)", "    return apply_top_k_top_p(logits, top_k, sampling_metadata.top_p)")],
    ],
)  # fmt: skip
_OF_PLATFORM = Fixes(
    release="0.33.0",
    path="vllm/platforms/cpu.py",
    patched=True,
    right=[],
    wrong=[
        [("                    cpu_tl._expand_kernel_impl\n", "                    cpu_tl._batch_memcpy_impl\n")],
        [("                    cpu_tl._expand_kernel_impl\n", "                    lambda *_, **__: None\n")],
    ],
)
EXPAND = (_OF_KERNEL, _OF_CALLER, _OF_PLATFORM)
