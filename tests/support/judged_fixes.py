"""What each probe that may decide at a start is judged by: fixes that only look right, and right ones in other words.

Beside those of foreign_fixes.py: fixes that leave the patched function right and break what is around it, such as
another value, another caller, another layer or the constructor. A fix that closes the bug and changes a neighbour is a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.support import judged_drafts, judged_graphs, judged_nvfp4, judged_sampling
from tests.support.foreign_fixes import (
    APPEND,
    BOTH,
    END,
    HANDLER,
    OFF,
    SPEC,
    STORE,
    UNIFORM,
    UNIFORM_TYPE,
    WARN,
    Fix,
    Fixes,
    indented,
    shared,
    uniform,
)

GOOD: Fix = [(HANDLER, BOTH)]
RETURN = "    return True\n\n\ndef may_override_num_blocks"
OLD_NAME = "\ndef is_kv_cache_spec_uniform("
COPY = """
def _all_alike(kv_cache_spec):
    if not kv_cache_spec:
        return True
    try:
        specs = list(kv_cache_spec.values())
        _ = specs[0].merge(specs)
    except AssertionError:
        return False
    return True


def is_kv_cache_spec_uniform("""
GROUPS = "    if is_kv_cache_spec_uniform(kv_cache_spec):\n        # KV cache of all layers are the same"
PROMOTED = """    if is_kv_cache_spec_uniform(
        promoted_specs
    ) or UniformTypeKVCacheSpecs.is_uniform_type(promoted_specs):
        return promoted_specs
"""

KV_SPEC = Fixes(
    release="0.33.0",
    path="vllm/v1/core/kv_cache_planning.py",
    right=[
        uniform("except (AssertionError, ValueError):\n        return all(())  is False"),
        uniform("except (ValueError, AssertionError) as why:\n        logger.debug('layers differ: %s', why)\n        return False"),
        [(UNIFORM, UNIFORM.replace("except AssertionError", "except (ValueError, AssertionError)").replace("return False", "result = False").replace("    return True", "    else:\n        result = True\n    return result"))],
        [
            *GOOD,
            (GROUPS, GROUPS.replace("is_kv_cache_spec_uniform(kv", "_is_uniform(kv")),
            (OLD_NAME, "\ndef _is_uniform(specs):\n    return is_kv_cache_spec_uniform(specs)\n\n" + OLD_NAME),
        ],
        [
            (
                UNIFORM,
                "    values = list(kv_cache_spec.values())\n    try:\n        values[0].merge(values)\n        return True\n    except AssertionError:\n        pass\n    except ValueError as error:\n        logger.debug(str(error))\n    return False\n",
            )
        ],
    ],
    wrong=[
        uniform("except (AssertionError, ValueError):\n        return (False,)"),
        uniform("except (AssertionError, ValueError):\n        return [False]"),
        uniform("except (AssertionError, ValueError):\n        return 'False'"),
        uniform("except (AssertionError, ValueError):\n        return True"),
        uniform("except AssertionError:\n        return False\n    except ValueError:\n        return True"),
        uniform("except AssertionError:\n        return False\n    except ValueError:\n        pass"),
        uniform("except AssertionError:\n        return False\n    except ValueError:\n        return None"),
        uniform("except ValueError:\n        return False"),
        [(UNIFORM, "    return True\n")],
        [(UNIFORM, "    return False\n")],
        [(UNIFORM, UNIFORM.replace("AssertionError", "(AssertionError, ValueError)").replace("    return True", "    return False"))],
        [(UNIFORM, UNIFORM.replace("AssertionError", "ValueError").replace("return False", "return True"))],
        [(UNIFORM, "    first, *rest = kv_cache_spec.values()\n    return all(type(one) is type(first) for one in rest)\n")],
        [(UNIFORM, "    first, *rest = kv_cache_spec.values()\n    return all(one == first for one in rest)\n")],
        [
            (
                "    try:\n        kv_cache_spec_values",
                "    if len({getattr(s, 'sliding_window', None) for s in kv_cache_spec.values()}) > 1:\n        return False\n    try:\n        kv_cache_spec_values",
            )
        ],
        [(HANDLER, BOTH.replace("return False", "return len(kv_cache_spec) > 3 and False or len(kv_cache_spec) == 2"))],
        [*GOOD, ("    if not kv_cache_spec:\n        # Encoder-only", "    if len(kv_cache_spec) > 8:\n        return True\n    if not kv_cache_spec:\n        # Encoder-only")],
        [*GOOD, (OLD_NAME, COPY), (GROUPS, GROUPS.replace("is_kv_cache_spec_uniform(kv", "_all_alike(kv"))],
        [*GOOD, (OLD_NAME, COPY), (PROMOTED, PROMOTED.replace("is_kv_cache_spec_uniform", "_all_alike"))],
        [
            *GOOD,
            (OLD_NAME, COPY),
            (GROUPS, GROUPS.replace("is_kv_cache_spec_uniform(kv", "_all_alike(kv")),
            (PROMOTED, PROMOTED.replace("is_kv_cache_spec_uniform", "_all_alike")),
        ],
        [*GOOD, (GROUPS, GROUPS.replace("if is_kv", "if not is_kv"))],
        [*GOOD, ("        SlidingWindowSpec: FullAttentionSpec,\n", "")],
        [(GROUPS, GROUPS.replace("if is_kv_cache_spec_uniform(kv_cache_spec)", "if False"))],
        [*GOOD, ("        return _get_kv_cache_groups_uniform_type(uniform_spec)\n    # Hidden", "        return _get_kv_cache_groups_uniform_spec(kv_cache_spec)\n    # Hidden")],
        [(UNIFORM, UNIFORM.replace("        _ = ", "        kv_cache_spec_values = kv_cache_spec_values[:1]\n        _ = "))],
        [(UNIFORM, UNIFORM.replace("    try:\n", "    windows = {s.sliding_window for s in kv_cache_spec.values()}\n    if len(windows) > 1:\n        return False\n    try:\n", 1))],
    ],
)  # fmt: skip

FIRST = f"next(iter({SPEC}.kv_cache_specs.values()))"
LAST = f"list({SPEC}.kv_cache_specs.values())[-1]"
LOOP = "    for layer_name, target_layer_name in shared_kv_cache_layers.items():\n"
KV_SHARING = Fixes(
    release="0.33.0",
    path="vllm/v1/worker/utils.py",
    right=[
        shared(f"owner = getattr({SPEC}, 'kv_cache_specs', {{}}).get(target_layer_name)\nif owner is not None:\n    {SPEC}.kv_cache_specs[layer_name] = owner"),
        [(APPEND, indented(f"kept = vars({SPEC}).get('kv_cache_specs')\nif kept is not None:\n    kept[layer_name] = kept[target_layer_name]") + APPEND)],
        shared(f"import copy\n{UNIFORM_TYPE}{SPEC}.kv_cache_specs[layer_name] = copy.copy({SPEC}.kv_cache_specs[target_layer_name])"),
        [(LOOP, "    def _own(group, layer, owner):\n        if isinstance(group.kv_cache_spec, UniformTypeKVCacheSpecs):\n            group.kv_cache_spec.kv_cache_specs[layer] = group.kv_cache_spec.kv_cache_specs[owner]\n\n" + LOOP), *shared("_own(tgt_kv_cache_group, layer_name, target_layer_name)")],
        shared(f"match {SPEC}:\n    case UniformTypeKVCacheSpecs():\n        {STORE}\n    case _:\n        pass"),
    ],
    wrong=[
        shared(f"{UNIFORM_TYPE}{SPEC}.kv_cache_specs[layer_name] = {FIRST}"),
        shared(f"{UNIFORM_TYPE}{SPEC}.kv_cache_specs[layer_name] = {LAST}"),
        shared(f"{UNIFORM_TYPE}{SPEC}.kv_cache_specs.setdefault(layer_name, {FIRST})"),
        shared(f"{UNIFORM_TYPE}{SPEC}.kv_cache_specs[layer_name] = {SPEC}.kv_cache_specs[sorted({SPEC}.kv_cache_specs)[0]]"),
        shared("first = kv_cache_groups[0].kv_cache_spec\nif isinstance(first, UniformTypeKVCacheSpecs):\n    first.kv_cache_specs[layer_name] = next(iter(first.kv_cache_specs.values()))"),
        shared(f"for group in kv_cache_groups:\n    if isinstance(group.kv_cache_spec, UniformTypeKVCacheSpecs):\n        group.kv_cache_spec.kv_cache_specs[layer_name] = getattr({SPEC}, 'kv_cache_specs', {{}}).get(target_layer_name, {FIRST} if hasattr({SPEC}, 'kv_cache_specs') else None)"),
        [*shared(UNIFORM_TYPE + STORE), ("        tgt_kv_cache_group = layer_to_kv_cache_group[target_layer_name]\n", "        tgt_kv_cache_group = kv_cache_groups[0]\n")],
        [(APPEND, "        tgt_kv_cache_group.layer_names.insert(0, layer_name)\n" + indented(UNIFORM_TYPE + STORE))],
        [(APPEND, indented(UNIFORM_TYPE + STORE))],
        shared(f"{UNIFORM_TYPE}{STORE}\n    {SPEC}.kv_cache_specs[target_layer_name] = {FIRST}"),
        shared(f"{UNIFORM_TYPE}{SPEC}.kv_cache_specs[layer_name] = {SPEC}.kv_cache_specs.pop(target_layer_name)"),
        shared(f"{UNIFORM_TYPE}if len({SPEC}.kv_cache_specs) < 6:\n        {STORE}"),
        shared(f"{UNIFORM_TYPE}if runner_only_attn_layers is None:\n        {STORE}"),
        shared(f"{UNIFORM_TYPE}import dataclasses\n    {SPEC}.kv_cache_specs[layer_name] = dataclasses.replace({SPEC}.kv_cache_specs[target_layer_name], block_size=32)"),
        shared(f"{UNIFORM_TYPE}{STORE}\nelse:\n    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs as Uniform\n    object.__setattr__(tgt_kv_cache_group, 'kv_cache_spec', Uniform(block_size=16, kv_cache_specs={{name: {SPEC} for name in tgt_kv_cache_group.layer_names}}))"),
        [(LOOP, LOOP + "        if target_layer_name not in layer_to_kv_cache_group:\n            continue\n"), *shared(f"{UNIFORM_TYPE}if layer_name.startswith('draft'):\n        {STORE}")],
        [(LOOP, LOOP.replace("shared_kv_cache_layers.items()", "list(shared_kv_cache_layers.items())[:1]")), *shared(UNIFORM_TYPE + STORE)],
    ],
)  # fmt: skip

CALL = "            self._warn_if_multimodal()\n"
MOST = "        self.is_rejected_token_mask: torch.Tensor | None = None\n"
SET: Fix = [(END, f"{END}            {OFF}")]
BUILD = "        if self.supports_mm_inputs:\n            mm_embeds, is_mm_embed = mm_embed_inputs or (None, None)\n"
TEXT_ONLY = Fixes(
    release="0.33.0",
    path="vllm/v1/spec_decode/llm_base_proposer.py",
    right=[
        [(CALL, f"{CALL}            {OFF}")],
        [(CALL, f"            if self.supports_mm_inputs:\n                logger.warning('text only')\n                {OFF}")],
        [(MOST, f"        if self.needs_extra_input_slots:\n            {OFF}{MOST}")],
        [(WARN, f"        images, self.supports_mm_inputs = self.supports_mm_inputs, False\n{WARN.replace('self.supports_mm_inputs', 'images')}")],
        [(BUILD, "        _, mask = mm_embed_inputs or (None, None)\n        if mask is not None and len(mask) != num_tokens:\n            mm_embed_inputs = None\n" + BUILD)],
    ],
    wrong=[
        [*SET, (CALL, "")],
        [*SET, (CALL, f"{CALL}            self.supports_mm_inputs = self.vllm_config.model_config.supports_multimodal_inputs\n")],
        [*SET, (CALL, f"            supported = self.supports_mm_inputs\n{CALL}            self.supports_mm_inputs = supported\n")],
        [*SET, (MOST, f"        self.supports_mm_inputs = bool(vllm_config.model_config.supports_multimodal_inputs)\n{MOST}")],
        [*SET, (CALL, f"            if self.parallel_drafting:\n    {CALL}")],
        [*SET, (CALL, f"            if self.method == 'mtp':\n    {CALL}")],
        [*SET, ("        if self.needs_extra_input_slots:\n            self._raise_if_padded", "        if not self.needs_extra_input_slots:\n            self._raise_if_padded")],
        [*SET, ("        if self.needs_extra_input_slots:\n            self._raise_if_padded", "        if True:\n            self._raise_if_padded")],
        [(MOST, f"        {OFF}{MOST}")],
        [("        self.supports_mm_inputs = vllm_config.model_config.supports_multimodal_inputs\n", f"        {OFF}")],
        [*SET, ("        self.model = self._get_model()\n", "        self.model = self._get_model()\n        self.supports_mm_inputs = True\n")],
        [*SET, ("        if supports_multimodal(target_model):\n", "        self.supports_mm_inputs = self.vllm_config.model_config.supports_multimodal_inputs\n        if supports_multimodal(target_model):\n")],
        [*SET, (BUILD, BUILD.replace("if self.supports_mm_inputs", "if True"))],
        [*SET, (BUILD, BUILD.replace("if self.supports_mm_inputs", "if self.vllm_config.model_config.supports_multimodal_inputs"))],
        [(BUILD, BUILD.replace("mm_embed_inputs or (None, None)", "mm_embed_inputs or (None, None)\n            is_mm_embed = is_mm_embed[:num_tokens] if is_mm_embed is not None else None"))],
        [(BUILD, "        num_tokens = min(num_tokens, 33)\n" + BUILD)],
        [*SET, (CALL, f"{CALL}            return\n")],
        [*SET, ("            self._raise_if_mrope()\n", "")],
        [*SET, ("            self._raise_if_padded_drafter_batch_disabled()\n", "")],
        [(WARN, "        if not self.supports_mm_inputs:\n            logger.warning(\n"), (END, f"{END}            {OFF}")],
    ],
)  # fmt: skip

MAX = "    max_top_k = k.max()\n"
MASK = "    no_top_k_mask = k == logits.shape[1]\n"
KEPT = '    return logits.masked_fill_(logits < top_k_mask, -float("inf"))\n'
CALLS = "            return apply_top_k_only(logits, k)\n"


def largest(new: str) -> Fix:
    return [(MAX, f"    max_top_k = {new}\n")]


def first(code: str) -> Fix:
    """Statements at the begin of the function's code."""
    return [(MASK, f"{indented(code, 4)}{MASK}")]


TOP_K = Fixes(
    release="0.33.0",
    path="vllm/v1/sample/ops/topk_topp_sampler.py",
    right=[
        largest("k.max() if k.numel() else 0"),
        largest("k.max() if len(k) > 0 else 1"),
        largest("max(k.tolist(), default=0)"),
        largest("torch.cat([k, k.new_ones(1)]).max()"),
        first("if logits.shape[0] == 0:\n    return logits"),
        first("if k.numel() == 0:\n    return logits.clone()"),
        [(MAX, "    if not k.shape[0]:\n        return logits\n" + MAX)],
        [(MAX, "    try:\n        max_top_k = k.max()\n    except RuntimeError:\n        return logits\n")],
    ],
    wrong=[
        largest("k.max() if k.shape[0] > 1 else 0"),
        largest("k.max() if k.shape[0] > 1 else 1"),
        largest("k.max() if k.dim() else 0"),
        largest("k.max() if k.shape else 0"),
        largest("k.amax()"),
        largest("k.max().clamp(min=1)"),
        largest("k.max(dim=0).values"),
        largest("k.min() if len(k) else 0"),
        largest("k[0] if len(k) else 0"),
        largest("1"),
        first("if k.numel() == 0:\n    return None"),
        first("if k.numel() == 0:\n    return logits[:, :0]"),
        first("if k.numel() == 0:\n    return logits.new_empty(0)"),
        first("if k.numel() == 0:\n    return logits.new_zeros(1, logits.shape[1])"),
        first("if k.numel() == 0:\n    return logits.double()"),
        first("if logits.shape[0] <= 1:\n    return logits"),
        first("if logits.shape[1] == 0:\n    return logits"),
        first("if logits is None:\n    return logits"),
        [*largest("k.max() if k.numel() else 0"), (KEPT, KEPT.replace("logits < ", "logits <= "))],
        [*largest("k.max() if k.numel() else 0"), (KEPT, KEPT.replace("masked_fill_(logits", "masked_fill(logits").replace("    return", "    _ =") + "    return logits\n")],
        [*largest("k.max() if k.numel() else 0"), ("    top_k_mask.masked_fill_(no_top_k_mask.unsqueeze(1), -float(\"inf\"))\n", "")],
        [*largest("k.max() if k.numel() else 0"), (CALLS, "            assert k.max() > 0\n" + CALLS)],
        [*largest("k.max() if k.numel() else 0"), (CALLS, CALLS.replace("k)", "k[:1])"))],
    ],
)  # fmt: skip

NAMES_BEGIN = "        # TODO (@kylesayrs): support ignore module names with ct matching utils\n"
IGNORED = """        if should_ignore_layer(
            layer_name, ignore=self.ignore, fused_mapping=self.packed_modules_mapping
        ):
            return None

        # Will"""
TARGETS = "                layer_name=layer_name,\n                module=layer,\n"
METHOD = "        if isinstance(layer, LinearBase):\n            # collect schemes\n"
MAPPED = "        self.ignore = _apply_list(self.ignore)\n"
SCHEMES = "        self.target_scheme_map = _apply_dict(self.target_scheme_map)\n"
OWN = 'layer_name.removeprefix("draft_model.")'
ASKED = "should_ignore_layer(layer_name, ignore=self.ignore, fused_mapping=self.packed_modules_mapping)"


def named(code: str) -> Fix:
    """Statements before a module is looked up."""
    return [(NAMES_BEGIN, indented(code) + NAMES_BEGIN)]


NEITHER = named(f"if {ASKED}:\n    return None\nlayer_name = {OWN}")
EXACT_NAMES = Fixes(
    release="0.33.0",
    path="vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py",
    right=[
        NEITHER,
        named(f"if layer_name and layer_name.startswith('draft_model.') and not {ASKED}:\n    layer_name = layer_name[len('draft_model.'):]"),
        [(METHOD, "        from .utils import should_ignore_layer as ignored\n        if prefix.startswith('draft_model.') and not ignored(prefix, ignore=self.ignore, fused_mapping=self.packed_modules_mapping):\n            prefix = prefix[12:]\n" + METHOD)],
        [
            (IGNORED, f"        own = {OWN} if layer_name else layer_name\n        if any(should_ignore_layer(name, ignore=self.ignore, fused_mapping=self.packed_modules_mapping) for name in (layer_name, own)):\n            return None\n\n        # Will"),
            (TARGETS, TARGETS.replace("layer_name=layer_name", "layer_name=own")),
        ],
        [
            (SCHEMES, SCHEMES + "        self.target_scheme_map |= {f'draft_model.{name}': one for name, one in self.target_scheme_map.items() if '.' in name and not name.startswith('re:')}\n"),
            (IGNORED, IGNORED.replace("ignore=self.ignore", "ignore=[*self.ignore, *(f'draft_model.{name}' for name in self.ignore if not name.startswith('re:'))]")),
        ],
    ],
    wrong=[
        named(f"if layer_name and 'vision' in layer_name:\n    layer_name = {OWN}"),
        named(f"if layer_name and 'tower' in layer_name and not {ASKED}:\n    layer_name = {OWN}"),
        named("if layer_name:\n    layer_name = layer_name.lstrip('draft_model.')"),
        named(f"if layer_name and not {ASKED}:\n    layer_name = layer_name.replace('draft_model.', '')"),
        named(f"if layer_name and not {ASKED}:\n    layer_name = layer_name.rpartition('draft_model.')[2]"),
        named(f"if layer_name and not {ASKED}:\n    layer_name = layer_name.partition('.')[2]"),
        named(f"if layer_name and layer_name.startswith('draft_model') and not {ASKED}:\n    layer_name = layer_name.partition('.')[2]"),
        named(f"if layer_name and layer_name.startswith('draft_model.'):\n    layer_name = {OWN}"),
        named("if layer_name and layer_name.startswith('draft_model.') and '_tower' in layer_name:\n    return None"),
        named("if layer_name and layer_name.startswith('draft_model.') and 'language_model' not in layer_name:\n    return None"),
        named("if layer_name and layer_name.startswith('draft_model.'):\n    return None"),
        [(IGNORED, IGNORED.replace("            layer_name,", f"            {OWN} if layer_name else None,"))],
        [(TARGETS, TARGETS.replace("layer_name=layer_name", f"layer_name={OWN} if layer_name else None"))],
        [(IGNORED, IGNORED.replace("            layer_name,", f"            {OWN} if layer_name else None,").replace("ignore=self.ignore", "ignore=self.ignore or []"))],
        [(MAPPED, MAPPED + "        self.ignore += [f'draft_model.{name}' for name in self.ignore]\n")],
        [(MAPPED, "        self.ignore = [f'draft_model.{name}' for name in _apply_list(self.ignore)]\n")],
        [(IGNORED, IGNORED.replace("ignore=self.ignore", "ignore=[*self.ignore, *(f're:.*{name}' for name in self.ignore)]"))],
        [*NEITHER, (SCHEMES, "")],
        [*NEITHER, (MAPPED, "")],
        [*NEITHER, (TARGETS, TARGETS.replace("module=layer", "module=layer if not layer_name.startswith('vision') else torch.nn.Module()"))],
    ],
)  # fmt: skip

JUDGED: Mapping[str, Sequence[Fixes]] = {
    "kv-spec-uniform-valueerror": (KV_SPEC,),
    "kv-sharing-uniform-specs": (KV_SHARING,),
    "draft-text-only": (TEXT_ONLY,),
    "cpu-top-k-no-rows": (TOP_K,),
    "draft-exact-names": (EXACT_NAMES,),
    "cpu-expand-sampling": judged_sampling.EXPAND,
    "gemma4-dflash-embedding-scale": (judged_drafts.EMBEDDING_SCALE,),
    "mtp-dense-draft-parallel": (judged_drafts.DENSE_DRAFT,),
    "nvfp4-nan-scales": judged_nvfp4.NAN_SCALES,
    "nvfp4-awq": judged_nvfp4.AWQ,
    "composite-full-graphs": judged_graphs.COMPOSITE,
}
"""By the patch whose probe it judges. `tools/bench_fixes.py --probe` asks it of all of foreign_fixes.py."""

PUBLISHED = "for published releases alone: a tree of one that it does not fit was edited by hand, and nothing starts"
NOT_JUDGED: Mapping[str, str] = {
    "draft-several-kv-groups": PUBLISHED,
    "eagle3-gemma4-target": PUBLISHED,
    "mtp-share-embeddings": PUBLISHED,
    "thought-channel-nonstreaming": PUBLISHED,
    "mtp-draft-ids": "a list of ids that gemmaspec alone hands over: no vLLM without the patch reads it",
}
"""Patches whose probe decides nothing, and why."""
