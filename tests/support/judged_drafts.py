"""Fixes of what a DFlash head reads, and of the configuration of a draft without experts."""

from __future__ import annotations

from tests.support.foreign_fixes import Fix, Fixes, indented

FLAG = "        self.has_separate_mask_embedding = False\n"
EMBEDS = "        embeds = self.embed_tokens(input_ids)\n"
TARGET = "target = vllm_config.speculative_config.target_model_config\n"
GEMMA = "target.hf_text_config.model_type.startswith('gemma4')"
ITS_OWN = "type(self) is DFlashQwen3Model"
OTHER_FORMAT = "self.config.model_type != 'speculators'"
ROOT = "torch.tensor(target.hf_text_config.hidden_size**0.5)"
TIMES = "        if self.embed_scale != 1.0:\n            embeds = embeds * self.embed_scale\n"


def scaled(*conditions: str, scale: str = f"{ROOT}.to(target.dtype).item()", times: str = TIMES) -> Fix:
    """A scale for a target and a head that meet all conditions, and where it is used."""
    chosen = f"{TARGET}self.embed_scale = 1.0\nif {' and '.join(conditions)}:\n    self.embed_scale = {scale}\n"
    return [(FLAG, FLAG + indented(chosen)), (EMBEDS, EMBEDS + times)]


ALL = (ITS_OWN, GEMMA, OTHER_FORMAT)
EMBEDDING_SCALE = Fixes(
    release="0.33.0",
    path="vllm/model_executor/models/qwen3_dflash.py",
    right=[
        scaled(*ALL, times="        embeds = embeds.mul(self.embed_scale)\n"),
        scaled(OTHER_FORMAT, "DFlashQwen3Model == type(self)", "'gemma4' in target.hf_text_config.model_type"),
        scaled(*ALL, scale="torch.tensor(target.hf_text_config.hidden_size).sqrt().to(target.dtype)"),
        scaled(*ALL, times="        embeds *= self.embed_scale\n"),
        scaled("type(self).__name__ == 'DFlashQwen3Model'", GEMMA, "'speculators' not in self.config.model_type", scale="float(torch.tensor(self.config.hidden_size**0.5, dtype=target.dtype))"),
        [(FLAG, FLAG + indented(TARGET + "self.target = target.hf_text_config\nself.target_dtype = target.dtype")), (EMBEDS, EMBEDS + f"        if {ITS_OWN} and self.target.model_type in ('gemma4_text', 'gemma4_unified_text') and {OTHER_FORMAT}:\n            embeds = embeds * torch.tensor(self.target.hidden_size**0.5, dtype=self.target_dtype, device=embeds.device)\n")],
    ],
    wrong=[
        scaled(GEMMA, OTHER_FORMAT),
        scaled(ITS_OWN, GEMMA),
        scaled(ITS_OWN, OTHER_FORMAT),
        scaled(*ALL, scale="float(target.hf_text_config.hidden_size)"),
        scaled(*ALL, scale="target.hf_text_config.hidden_size**0.25"),
        scaled(*ALL, scale="target.hf_text_config.hidden_size**-0.5"),
        scaled(*ALL, scale="self.config.vocab_size**0.5"),
        scaled(*ALL, scale="73.5"),
        scaled(*ALL, times=TIMES + TIMES),
        scaled(*ALL, times="        if self.has_separate_mask_embedding:\n            embeds = embeds * self.embed_scale\n"),
        scaled(*ALL, times="        if not self.use_aux_hidden_state:\n            embeds = embeds * self.embed_scale\n"),
        scaled(*ALL, times="        if self.embed_scale != 1.0:\n            embeds * self.embed_scale\n"),
        scaled(*ALL, times="        if self.embed_scale != 1.0:\n            self.embed_tokens.weight.data.mul_(self.embed_scale)\n            embeds = self.embed_tokens(input_ids)\n"),
        scaled(*ALL, times="        embeds = torch.where((input_ids == self.mask_token_id).unsqueeze(-1), embeds, embeds * self.embed_scale)\n"),
        scaled(ITS_OWN, OTHER_FORMAT, "target.hf_text_config.model_type == 'gemma4'"),
        scaled(ITS_OWN, OTHER_FORMAT, "target.hf_text_config.model_type == 'gemma4_text'"),
        scaled(ITS_OWN, OTHER_FORMAT, "self.config.model_type.startswith('gemma4')"),
        scaled(*ALL, times="        embeds = torch.nn.functional.normalize(embeds.float(), dim=-1).to(embeds.dtype) * self.embed_scale\n"),
        [*scaled(*ALL, times=""), ("        return embeds\n\n    def _build_context", "        return embeds * self.embed_scale\n\n    def _build_context")],
        [*scaled(*ALL), ("            input_embeds = self.embed_input_ids(input_ids)\n", "            input_embeds = self.embed_tokens(input_ids)\n")],
        [*scaled(*ALL), ("            input_embeds = self.embed_input_ids(input_ids)\n", "            input_embeds = self.embed_input_ids(input_ids) * self.embed_scale\n")],
    ],
)  # fmt: skip

MODEL = "            model_config=draft_model_config,\n"
MADE = f"        draft_vllm_config = replace(\n            self.vllm_config,\n{MODEL}        )\n"
PARALLEL = "replace(self.vllm_config.parallel_config, enable_expert_parallel=False, enable_eplb=False)"


def parallel(value: str) -> Fix:
    return [(MODEL, f"{MODEL}            parallel_config={value},\n")]


def before(code: str) -> Fix:
    """Statements before the configuration is made, which make `changed`."""
    return [(MADE, indented(code) + MADE.replace(MODEL, f"{MODEL}            parallel_config=changed,\n"))]


DENSE_DRAFT = Fixes(
    release="0.33.0",
    path="vllm/v1/worker/gpu/spec_decode/gemma4/speculator.py",
    right=[
        parallel("replace(self.vllm_config.parallel_config, enable_eplb=False, enable_expert_parallel=False)"),
        parallel("replace(self.vllm_config.parallel_config, enable_eplb=False, enable_expert_parallel=draft_model_config.is_moe)"),
        before("ours = self.vllm_config.parallel_config\noff = dict(enable_expert_parallel=False, enable_eplb=False)\nchanged = replace(ours, **off)"),
        before("changed = self.vllm_config.parallel_config\nif not draft_model_config.is_moe:\n    changed = replace(changed, enable_expert_parallel=False, enable_eplb=False)"),
        before("import copy\nchanged = copy.copy(self.vllm_config.parallel_config)\nchanged.enable_expert_parallel = changed.enable_eplb = False"),
    ],
    wrong=[
        parallel("replace(self.vllm_config.parallel_config, enable_expert_parallel=False)"),
        parallel("replace(self.vllm_config.parallel_config, enable_eplb=False)"),
        parallel("self.speculative_config.draft_parallel_config"),
        parallel("replace(self.speculative_config.draft_parallel_config, tensor_parallel_size=1)"),
        parallel("replace(self.vllm_config.parallel_config, enable_expert_parallel=False, enable_eplb=False, tensor_parallel_size=1)"),
        parallel("replace(self.vllm_config.parallel_config, enable_expert_parallel=False, enable_eplb=False, rank=0)"),
        parallel("replace(self.vllm_config.parallel_config, enable_expert_parallel=False, enable_eplb=False, pipeline_parallel_size=2)"),
        before("changed = self.vllm_config.parallel_config\nchanged.enable_expert_parallel = changed.enable_eplb = False"),
        before("changed = self.vllm_config.parallel_config\nself.vllm_config.parallel_config = changed = replace(changed, enable_expert_parallel=False, enable_eplb=False)"),
        before("changed = self.vllm_config.parallel_config\nif draft_model_config.is_moe:\n    changed = replace(changed, enable_expert_parallel=False, enable_eplb=False)"),
        before("changed = self.vllm_config.parallel_config\nif changed.tensor_parallel_size == 1:\n    changed = replace(changed, enable_expert_parallel=False, enable_eplb=False)"),
        [(MADE, "        try:\n" + indented(MADE, 4) + "        except ValueError:\n            draft_vllm_config = self.vllm_config\n")],
        [*parallel(PARALLEL), ("                    backend=target_backend,\n", "                    backend=None,\n")],
        [*parallel(PARALLEL), ("        return draft_vllm_config\n", "        return replace(draft_vllm_config, model_config=self.vllm_config.model_config)\n")],
        [*parallel(PARALLEL), ("        draft_vllm_config = self._create_draft_vllm_config()\n", "        draft_vllm_config = super()._create_draft_vllm_config()\n")],
        [*parallel(PARALLEL), ("                vllm_config=draft_vllm_config,\n", "                vllm_config=self.vllm_config,\n")],
    ],
)  # fmt: skip
