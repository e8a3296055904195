"""Somebody else's fixes of the holes that patches close, in other words: right ones, and ones that only look right.

Each is a list of replacements in the release's own file, and the hole is closed by it or not: `tools/bench_fixes.py
--probe` asks the patch's probe, which runs vLLM's own modules. `TUNED` was known when the rules were written, `UNSEEN` was
written after them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Fix = Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Fixes:
    """Fixes of one hole in one file of one release."""

    release: str
    path: str
    right: Sequence[Fix]
    wrong: Sequence[Fix]
    patched: bool = False
    """The replacements are in the file as the patch makes it, and so are the other files that it edits."""


UNIFORM = """\
    try:
        kv_cache_spec_values = list(kv_cache_spec.values())
        _ = kv_cache_spec_values[0].merge(kv_cache_spec_values)
    except AssertionError:
        return False
    return True
"""
HANDLER = "    except AssertionError:\n        return False\n    return True\n"
BOTH = "    except (AssertionError, ValueError):\n        return False\n    return True\n"
OTHER_TRY = """\
    try:
        len(kv_cache_spec)
    except (AssertionError, ValueError):
        return False
"""


def uniform(new: str) -> Fix:
    """One more handler, in the place of the release's own."""
    return [(HANDLER, f"    {new}\n    return True\n")]


def deeper(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


KV_SPEC_TUNED = Fixes(
    release="0.33.0",
    path="vllm/v1/core/kv_cache_planning.py",
    right=[
        uniform("except (AssertionError, ValueError):\n        return False"),
        uniform("except (ValueError, AssertionError):\n        return False"),
        uniform("except (AssertionError, ValueError) as error:\n        return False"),
        uniform("except (\n        AssertionError,\n        ValueError,\n    ):\n        return False"),
        uniform("except (AssertionError, ValueError, TypeError):\n        return False"),
        uniform("except Exception:\n        return False"),
        uniform("except Exception as exc:\n        logger.debug('not uniform: %s', exc)\n        return False"),
        uniform("except (AssertionError, ValueError) as e:\n        logger.debug('no %s', e)\n        return False"),
        uniform("except:\n        return False"),
        uniform("except AssertionError:\n        return False\n    except ValueError:\n        return False"),
        uniform("except ValueError:\n        return False\n    except AssertionError:\n        return False"),
        [(HANDLER, "    except (AssertionError, ValueError):\n        return False\n    else:\n        return True\n")],
        [
            (
                "\ndef is_kv_cache_spec_uniform(",
                "\n_NOT = (AssertionError, ValueError)\n\n\ndef is_kv_cache_spec_uniform(",
            ),
            (HANDLER, HANDLER.replace("AssertionError", "_NOT")),
        ],
        [
            (
                UNIFORM,
                f"    uniform = True\n{UNIFORM.replace('return False', 'uniform = False').replace('AssertionError', 'Exception').replace('return True', 'return uniform')}",
            )
        ],
        [
            (
                UNIFORM,
                UNIFORM.replace("    try:", "    specs = kv_cache_spec\n    try:").replace(
                    "AssertionError", "(ValueError, AssertionError)"
                ),
            )
        ],
        [(UNIFORM, UNIFORM.replace("_ =", "merged =").replace("AssertionError", "(AssertionError, ValueError)"))],
        [(UNIFORM, "    values = list(kv_cache_spec.values())\n    try:\n        values[0].merge(values)\n" + BOTH)],
        uniform("except (AssertionError, ValueError):  # windows differ\n        pass\n        return False"),
        uniform("except BaseException:\n        return False"),
    ],
    wrong=[
        uniform("except AssertionError as e:\n        return False"),
        uniform("except (AssertionError):\n        return False"),
        uniform("except (AssertionError,):\n        return False"),
        uniform("except (AssertionError, KeyError):\n        return False"),
        uniform("except (AssertionError, ValueError):\n        raise"),
        uniform(
            "except (AssertionError, ValueError) as e:\n        if isinstance(e, ValueError):\n            raise\n        return False"
        ),
        [(UNIFORM, OTHER_TRY + UNIFORM.replace("AssertionError:", "AssertionError as e:"))],
        [(UNIFORM, OTHER_TRY + UNIFORM.replace("AssertionError:", "(AssertionError,):"))],
        [
            (
                UNIFORM,
                UNIFORM.replace("AssertionError", "(AssertionError, KeyError)").replace(
                    "    return True\n", OTHER_TRY + "    return True\n"
                ),
            )
        ],
        [
            (
                UNIFORM,
                f"    def _merge():\n{deeper(OTHER_TRY)}\n{UNIFORM.replace('AssertionError:', '(AssertionError):')}",
            )
        ],
        [(UNIFORM, f"    if False:\n{deeper(OTHER_TRY)}{UNIFORM.replace('AssertionError:', '(AssertionError):')}")],
        [
            (
                UNIFORM,
                "    list(kv_cache_spec.values())[0].merge(list(kv_cache_spec.values()))\n"
                + UNIFORM.replace("AssertionError", "(AssertionError, ValueError)"),
            )
        ],
        [
            (
                UNIFORM,
                UNIFORM.replace("AssertionError", "(AssertionError, ValueError)").replace(
                    "        return False\n    return True",
                    "        pass\n    return kv_cache_spec_values[0].merge(kv_cache_spec_values) is not None",
                ),
            )
        ],
        [
            (
                UNIFORM,
                "    class ValueError(AssertionError):\n        pass\n\n"
                + UNIFORM.replace("AssertionError:", "(AssertionError, ValueError):"),
            )
        ],
        [
            (
                "\ndef is_kv_cache_spec_uniform(",
                "\nclass ValueError(Exception):\n    pass\n\n\ndef is_kv_cache_spec_uniform(",
            ),
            *uniform("except (AssertionError, ValueError):\n        return False"),
        ],
        [
            (
                UNIFORM,
                UNIFORM.replace(
                    "    except AssertionError:", "    except (AssertionError, ValueError) and AssertionError:"
                ),
            )
        ],
        [
            (
                UNIFORM,
                UNIFORM.replace("AssertionError:", "(AssertionError, ValueError):")
                .replace("        _ =", "    except KeyError:\n        return False\n    _ =", 1)
                .replace("\n    except (Assert", "\n    try:\n        pass\n    except (Assert"),
            )
        ],
        uniform("except (AssertionError, ValueError) as e:\n        e.missing()\n        return False"),
        uniform(
            "except (AssertionError, ValueError):\n        logger.debug('%s', undefined_name)\n        return False"
        ),
        [
            (HANDLER, BOTH),
            (
                "\ndef is_kv_cache_spec_type_uniform" if False else "\ndef is_kv_cache_spec_uniform(",
                "\nAssertionError = ValueError = KeyError\n\n\ndef is_kv_cache_spec_uniform(",
            ),
        ],
    ],
)

TARGET = "        tgt_kv_cache_group = layer_to_kv_cache_group[target_layer_name]\n"
APPEND = "        tgt_kv_cache_group.layer_names.append(layer_name)\n"
ONLY = "            runner_only_attn_layers.add(layer_name)\n"
SPEC = "tgt_kv_cache_group.kv_cache_spec"
STORE = f"{SPEC}.kv_cache_specs[layer_name] = {SPEC}.kv_cache_specs[target_layer_name]"


def indented(text: str, by: int = 8) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in text.strip("\n").splitlines())


def shared(code: str) -> Fix:
    """Statements right behind the line that adds the layer to its group."""
    return [(APPEND, APPEND + indented(code))]


UNIFORM_TYPE = f"if isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    "
KV_SHARING_TUNED = Fixes(
    release="0.33.0",
    path="vllm/v1/worker/utils.py",
    right=[
        shared(UNIFORM_TYPE + STORE),
        shared(
            f"spec = {SPEC}\nif isinstance(spec, UniformTypeKVCacheSpecs):\n    spec.kv_cache_specs[layer_name] = spec.kv_cache_specs[target_layer_name]"
        ),
        shared(f"if hasattr({SPEC}, 'kv_cache_specs'):\n    {STORE}"),
        shared(
            f"specs = getattr({SPEC}, 'kv_cache_specs', None)\nif specs is not None:\n    specs[layer_name] = specs[target_layer_name]"
        ),
        shared(
            f"specs = getattr({SPEC}, 'kv_cache_specs', None)\nif specs:\n    specs[layer_name] = specs[target_layer_name]"
        ),
        shared(
            f"if (specs := getattr({SPEC}, 'kv_cache_specs', None)) is not None:\n    specs.setdefault(layer_name, specs[target_layer_name])"
        ),
        shared(f"{UNIFORM_TYPE}{SPEC}.kv_cache_specs.setdefault(layer_name, {SPEC}.kv_cache_specs[target_layer_name])"),
        shared(f"{UNIFORM_TYPE}{SPEC}.kv_cache_specs.update({{layer_name: {SPEC}.kv_cache_specs[target_layer_name]}})"),
        [(APPEND, indented(UNIFORM_TYPE + STORE) + APPEND)],
        [
            (TARGET, f"{TARGET}        group_spec = {SPEC}\n"),
            (
                APPEND,
                APPEND
                + indented(
                    "if isinstance(group_spec, UniformTypeKVCacheSpecs):\n    group_spec.kv_cache_specs[layer_name] = group_spec.kv_cache_specs[target_layer_name]"
                ),
            ),
        ],
        [(ONLY, ONLY + "\n" + indented(UNIFORM_TYPE + STORE))],
        shared(
            f"kv_spec = {SPEC}\nif hasattr(kv_spec, 'kv_cache_specs') and layer_name not in kv_spec.kv_cache_specs:\n    kv_spec.kv_cache_specs[layer_name] = kv_spec.kv_cache_specs[target_layer_name]"
        ),
        shared(
            f"{UNIFORM_TYPE}per_layer = {SPEC}.kv_cache_specs\n    per_layer[layer_name] = per_layer[target_layer_name]"
        ),
        shared(
            f"if isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    if layer_name not in {SPEC}.kv_cache_specs:\n        {STORE}"
        ),
        shared(f"if type({SPEC}) is UniformTypeKVCacheSpecs:\n    {STORE}"),
        shared(f"try:\n    {STORE}\nexcept AttributeError:\n    pass"),
        [
            (APPEND, APPEND + indented("_share_spec(tgt_kv_cache_group, layer_name, target_layer_name)")),
            (
                "\ndef add_kv_sharing_layers_to",
                "\ndef _share_spec(group, layer, owner):\n    specs = getattr(group.kv_cache_spec, 'kv_cache_specs', None)\n    if specs is not None:\n        specs[layer] = specs[owner]\n\n\ndef add_kv_sharing_layers_to",
            ),
        ],
        [
            (
                APPEND,
                "        group = tgt_kv_cache_group\n        group.layer_names.append(layer_name)\n"
                + indented(
                    "if isinstance(group.kv_cache_spec, UniformTypeKVCacheSpecs):\n    group.kv_cache_spec.kv_cache_specs[layer_name] = group.kv_cache_spec.kv_cache_specs[target_layer_name]"
                ),
            )
        ],
        shared(f"{UNIFORM_TYPE}logger.debug('a shared layer')\n    {STORE}"),
        shared(
            f"target_spec = getattr({SPEC}, 'kv_cache_specs', {{}}).get(target_layer_name)\nif target_spec is not None:\n    {SPEC}.kv_cache_specs[layer_name] = target_spec"
        ),
    ],
    wrong=[
        [(ONLY, ONLY + indented(UNIFORM_TYPE + STORE, 12))],
        [(ONLY, indented(UNIFORM_TYPE + STORE, 12) + ONLY)],
        shared(f"if isinstance({SPEC}, MambaSpec):\n    {STORE}"),
        shared(f"if False:\n    {STORE}"),
        shared(f"def _share():\n    {STORE}"),
        shared(f"{UNIFORM_TYPE}{STORE}\n    {SPEC}.kv_cache_specs.pop(layer_name)"),
        shared(
            f"{UNIFORM_TYPE}{STORE}\nif hasattr({SPEC}, 'kv_cache_specs'):\n    del {SPEC}.kv_cache_specs[layer_name]"
        ),
        shared(f"{UNIFORM_TYPE}{SPEC}.kv_cache_specs[layer_name] = None"),
        shared(f"{UNIFORM_TYPE}{SPEC}.kv_cache_specs[target_layer_name] = {SPEC}.kv_cache_specs[target_layer_name]"),
        shared(f"{UNIFORM_TYPE}{SPEC}.kv_cache_specs[layer_name] = next(reversed({SPEC}.kv_cache_specs.values()))"),
        shared(f"if not isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    {STORE}"),
        shared(f"if runner_only_attn_layers is not None and isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    {STORE}"),
        shared(
            f"specs = dict(getattr({SPEC}, 'kv_cache_specs', {{}}))\nif specs:\n    specs[layer_name] = specs[target_layer_name]"
        ),
        [
            (
                TARGET,
                indented(
                    "if layer_to_kv_cache_group is None and hasattr(kv_cache_group.kv_cache_spec, 'kv_cache_specs'):\n    pass"
                )
                + TARGET,
            )
        ],
        [(TARGET, "        for tgt_kv_cache_group in ():\n" + indented(UNIFORM_TYPE + STORE, 12) + TARGET)],
        [
            (
                "    for layer_name, target_layer_name in shared_kv_cache_layers.items():\n",
                "    for layer_name, target_layer_name in shared_kv_cache_layers.items():\n        if target_layer_name in layer_to_kv_cache_group:\n            layer_to_kv_cache_group[target_layer_name].layer_names.append(layer_name)\n            continue\n",
            ),
            *shared(UNIFORM_TYPE + STORE),
        ],
        shared(f"if isinstance({SPEC}, UniformSpecs):\n    {STORE}"),
        shared(f"if hasattr(tgt_kv_cache_group, 'kv_cache_specs'):\n    {STORE}"),
        shared(f"if hasattr({SPEC}, 'specs'):\n    {STORE}"),
        shared(f"layer_name = ''\n{UNIFORM_TYPE}{STORE}"),
    ],
)

WARN = "        if self.supports_mm_inputs:\n            logger.warning(\n"
END = '                "Proceeding with text-only speculative decoding."\n            )\n'
OFF = "self.supports_mm_inputs = False\n"


def head(code: str) -> Fix:
    return [("    def _warn_if_multimodal(self):\n", f"    def _warn_if_multimodal(self):\n{code}")]


TEXT_ONLY_TUNED = Fixes(
    release="0.33.0",
    path="vllm/v1/spec_decode/llm_base_proposer.py",
    right=[
        [(END, f"{END}            {OFF}")],
        [(END, f"{END}        {OFF}")],
        [(WARN, f"        if self.supports_mm_inputs:\n            {OFF}            logger.warning(\n")],
        [
            (
                WARN,
                f"        if self.supports_mm_inputs:\n            # its mask is one entry short\n            {OFF}            logger.warning(\n",
            )
        ],
        [(END, f"{END}            # text only\n            {OFF}")],
        [(END, f"{END}\n            self.supports_mm_inputs: bool = False\n")],
        [(END, f"{END}            setattr(self, 'supports_mm_inputs', False)\n")],
        [(END, f"{END}        self.supports_mm_inputs = not True\n")],
        [(END, f"{END}            self.supports_mm_inputs = bool(0)\n")],
        [(END, f"{END}            self._drop_multimodal()\n\n    def _drop_multimodal(self):\n        {OFF}")],
        [(END, f"{END}            logger.info('no images')\n            {OFF}")],
        [(END, f"{END}            {OFF}            logger.info('no images')\n")],
        [(END, f"{END}            {OFF}            return\n")],
        [
            (
                WARN,
                "        if getattr(self, 'supports_mm_inputs', False):\n            self.supports_mm_inputs = False\n            logger.warning(\n",
            )
        ],
        [
            (WARN, "        if self.supports_mm_inputs is True:\n            logger.warning(\n"),
            (END, f"{END}            {OFF}"),
        ],
        [
            (
                WARN,
                "        supported, self.supports_mm_inputs = self.supports_mm_inputs, False\n        if supported:\n            logger.warning(\n",
            )
        ],
        [(END, f"{END}            self.__dict__['supports_mm_inputs'] = False\n")],
        [(END, f"{END}            self.supports_mm_inputs &= False\n")],
        [(END, f"{END}        else:\n            return\n        {OFF}")],
        [
            (
                '                "Proceeding with text-only speculative decoding."\n',
                '                "The draft gets token ids alone."\n',
            ),
            ("            )\n\n", f"            )\n            {OFF}\n"),
        ]
        if False
        else [(END, f"{END}            pass\n            {OFF}")],
    ],
    wrong=[
        [(END, f"{END}            self.supports_mm_inputs = False if self.draft_text_only else True\n")],
        [(END, f"{END}            self.supports_mm_inputs = False or True\n")],
        [(END, f"{END}            {OFF}            self.supports_mm_inputs = True\n")],
        [(END, f"{END}            {OFF}        self.supports_mm_inputs = True\n")],
        [(END, f"{END}            if self.__class__.__name__ == 'EagleProposer':\n                {OFF}")],
        [(END, f"{END}            def _off():\n                {OFF}")],
        [(END, f"{END}            if False:\n                {OFF}")],
        [(END, f"{END}            supports_mm_inputs = False\n")],
        [(END, f"{END}            self.supports_mm_input = False\n")],
        [(END, f"{END}            self.supports_mm_inputs == False\n")],
        [(END, f"{END}        else:\n            {OFF}")],
        [(END, f"{END}            return\n            {OFF}")],
        [(END, f"{END}        while self is None:\n            {OFF}")],
        head(f"        return\n        {OFF}"),
        head(f"        if not self.supports_mm_inputs:\n            {OFF}"),
        head(f"        for _ in ():\n            {OFF}"),
        [(END, f"{END}            self.supports_mm_inputs = None is None\n")],
        [
            (
                END,
                f"{END}            other = self\n            del other\n            lambda: setattr(self, 'supports_mm_inputs', False)\n",
            )
        ],
        [(END, f"{END}            {OFF}\n    _warn_if_multimodal = lambda self: None\n")],
        [
            (
                END,
                f"{END}            try:\n                raise KeyError\n                {OFF}            except KeyError:\n                pass\n",
            )
        ],
    ],
)

IF_SHARE = "            if share_embeddings:\n                draft_embed = self.model.model.embed_tokens\n"
IF_DIMS = "                    if target_dim != draft_dim:\n                        share_embeddings = False\n"
OWN = 'hasattr(self.model, "has_own_embed_tokens")'
IF_TENSORS = "                if isinstance(target_embed_tokens.weight, torch.Tensor) and isinstance(\n                    draft_embed.weight, torch.Tensor\n                ):\n"


def share(test: str) -> Fix:
    return [(IF_SHARE, IF_SHARE.replace("if share_embeddings:", f"if {test}:"))]


def dims(test: str) -> Fix:
    return [(IF_DIMS, IF_DIMS.replace("if target_dim != draft_dim:", f"if {test}:"))]


MTP_TUNED = Fixes(
    release="0.26.0",
    path="vllm/v1/spec_decode/llm_base_proposer.py",
    right=[
        share(f"share_embeddings and {OWN}"),
        share(f"{OWN} and share_embeddings"),
        share(f"share_embeddings and (\n                {OWN}\n            )"),
        share("share_embeddings and hasattr(self.model, 'has_own_embed_tokens')"),
        dims(f"target_dim != draft_dim and {OWN}"),
        dims(f"{OWN} and target_dim != draft_dim"),
        dims(f"{OWN} and draft_dim != target_dim"),
        share("share_embeddings and getattr(self.model, 'has_own_embed_tokens', None) is not None"),
        [(IF_TENSORS, IF_TENSORS.replace("if isinstance(target", f"if {OWN} and isinstance(target"))],
        [
            (IF_SHARE, IF_SHARE.replace("if share_embeddings:", "if share_embeddings and is_eagle:")),
            (
                "            share_embeddings = False\n            if hasattr",
                f"            is_eagle = {OWN}\n            share_embeddings = False\n            if hasattr",
            ),
        ],
        [
            (
                "                # MTP model\n                share_embeddings = True\n",
                "                # MTP model\n                share_embeddings = is_mtp = True\n",
            ),
            (
                "            share_embeddings = False\n            if hasattr",
                "            share_embeddings = is_mtp = False\n            if hasattr",
            ),
            *share("share_embeddings and not is_mtp"),
        ],
        [
            (
                IF_DIMS,
                f"                    if target_dim != draft_dim and {OWN}:  # EAGLE\n                        share_embeddings = False\n",
            )
        ],
        dims(f"{OWN} and (target_dim != draft_dim)"),
        share(f"share_embeddings and {OWN} and True"),
        share(f"not (not share_embeddings or not {OWN})"),
        dims(f"target_dim != draft_dim and not isinstance(self.model, type(None)) and {OWN}"),
        [
            (
                IF_DIMS,
                "                    if target_dim != draft_dim:\n                        share_embeddings = not "
                + OWN
                + "\n",
            )
        ],
        share(f"share_embeddings is True and {OWN}"),
        share("share_embeddings and 'has_own_embed_tokens' in dir(self.model)"),
        [(IF_SHARE, IF_SHARE.replace("if share_embeddings:", f"if share_embeddings and {OWN}:  # not MTP"))],
    ],
    wrong=[
        [
            (
                "            share_embeddings = False\n            if hasattr",
                f"            share_embeddings = False\n            if share_embeddings and {OWN}:\n                draft_embed = None\n            if hasattr",
            ),
            *dims("draft_dim != target_dim"),
        ],
        share(f"share_embeddings and not {OWN}"),
        share(f"share_embeddings or {OWN}"),
        share("share_embeddings and hasattr(self.model, 'model')"),
        share("share_embeddings and hasattr(self, 'model')"),
        share(f"share_embeddings or not {OWN}"),
        dims(f"target_dim != draft_dim or {OWN}"),
        dims(f"target_dim != draft_dim and not {OWN}"),
        dims("target_dim != draft_dim and target_dim > draft_dim"),
        dims("target_dim != draft_dim and self.model is not None"),
        [
            (
                "            if share_embeddings:\n                if hasattr(self.model.model",
                f"            if share_embeddings and {OWN}:\n                if hasattr(self.model.model",
            ),
            *dims("draft_dim != target_dim"),
        ],
        [
            *share(f"share_embeddings and {OWN}"),
            (
                "            if share_embeddings:\n                if hasattr(self.model.model",
                f"            share_embeddings = share_embeddings and {OWN}\n            if share_embeddings:\n                if hasattr(self.model.model",
            ),
        ],
        [
            *share(f"share_embeddings and {OWN}"),
            (
                "                # MTP model\n                share_embeddings = True\n",
                "                # MTP model\n                share_embeddings = False\n",
            ),
        ],
        [
            *share(f"share_embeddings and {OWN}"),
            (
                "        if get_pp_group().world_size == 1:\n            inner_model",
                "        if get_pp_group().world_size == 1:\n            return\n            inner_model",
            ),
        ],
        [
            *share(f"share_embeddings and {OWN}"),
            (
                "                self.model.model.embed_tokens = target_embed_tokens\n        else:",
                "                _ = target_embed_tokens\n        else:",
            ),
        ],
        dims(f"target_dim != draft_dim and (True or {OWN})"),
        dims("True and target_dim != draft_dim"),
        [
            (
                IF_SHARE,
                f"            if False and share_embeddings and {OWN}:\n                draft_embed = None\n"
                + IF_SHARE.replace("draft_embed =", "draft_embed  ="),
            ),
            *dims("draft_dim != target_dim"),
        ],
        [
            *share(f"share_embeddings and {OWN}"),
            (
                "            if share_embeddings:\n                if hasattr(self.model.model",
                "            if share_embeddings and target_embed_tokens.weight.shape == self.model.model.embed_tokens.weight.shape:\n                if hasattr(self.model.model",
            ),
        ],
        share("share_embeddings and self.model.has_own_embed_tokens"),
    ],
)

TUNED: Mapping[str, Fixes] = {
    "kv-spec-uniform-valueerror": KV_SPEC_TUNED,
    "kv-sharing-uniform-specs": KV_SHARING_TUNED,
    "draft-text-only": TEXT_ONLY_TUNED,
    "mtp-share-embeddings": MTP_TUNED,
}

KV_SPEC_UNSEEN = Fixes(
    release="0.32.0",
    path="vllm/v1/core/kv_cache_utils.py",
    right=[
        uniform("except (ValueError, AssertionError, KeyError) as exc:\n        return False"),
        uniform("except (Exception,):\n        return False"),
        uniform("except (AssertionError, Exception):\n        return False"),
        uniform("except (AssertionError, ValueError):\n        # sliding windows differ\n        return False"),
        uniform(
            "except (AssertionError, ValueError, RuntimeError):\n        logger.info('mixed windows')\n        return False"
        ),
        uniform("except Exception as error:\n        logger.warning('cannot merge: %s', error)\n        return False"),
        uniform(
            "except ValueError:\n        return False\n    except AssertionError:\n        return False\n    except KeyError:\n        return False"
        ),
        uniform("except AssertionError:\n        return False\n    except Exception:\n        return False"),
        uniform("except (AssertionError, ValueError):\n        return bool(0)"),
        uniform("except (AssertionError, ValueError):\n        uniform = False\n        return uniform"),
        uniform("except (AssertionError, ValueError):\n        return not True"),
        [
            (
                UNIFORM,
                "    import contextlib\n\n    with contextlib.suppress(AssertionError, ValueError):\n        values = list(kv_cache_spec.values())\n        values[0].merge(values)\n        return True\n    return False\n",
            )
        ],
        [
            (
                UNIFORM,
                UNIFORM.replace("AssertionError", "(AssertionError, ValueError)")
                .replace("return False", "is_uniform = False")
                .replace("    return True", "    else:\n        is_uniform = True\n    return is_uniform"),
            )
        ],
        [
            (
                UNIFORM,
                UNIFORM.replace("kv_cache_spec_values", "specs").replace(
                    "AssertionError", "(AssertionError, ValueError)"
                ),
            )
        ],
        [
            (
                UNIFORM,
                UNIFORM.replace("        kv_cache_spec_values = list(kv_cache_spec.values())\n", "")
                .replace("    try:", "    kv_cache_spec_values = list(kv_cache_spec.values())\n    try:")
                .replace("AssertionError", "(ValueError, AssertionError)"),
            )
        ],
        [
            (
                UNIFORM,
                UNIFORM.replace("    return True\n", "    except ValueError:\n        return False\n    return True\n"),
            )
        ],
        uniform(
            "except (AssertionError, ValueError) as reason:\n        logger.debug('%s', reason)\n        return False"
        ),
        uniform("except (BaseException):\n        return False"),
        uniform("except (TypeError, ValueError, AssertionError):\n        return False"),
        uniform(
            "except (\n        ValueError,  # windows\n        AssertionError,  # types\n    ) as error:\n        return False"
        ),
    ],
    wrong=[
        uniform("except (AssertionError, TypeError):\n        return False"),
        uniform("except AssertionError as error:\n        logger.debug('%s', error)\n        return False"),
        uniform("except (AssertionError, UnicodeError):\n        return False"),
        uniform(
            "except (AssertionError, ValueError):\n        return kv_cache_spec_values[0].merge(kv_cache_spec_values)"
        ),
        uniform("except (AssertionError, ValueError) as error:\n        raise RuntimeError from error"),
        uniform(
            "except (AssertionError,):\n        return False\n    finally:\n        # except (AssertionError, ValueError): return False\n        pass"
        ),
        uniform("except (AssertionError, (KeyError)):\n        return False"),
        [
            (
                UNIFORM,
                UNIFORM.replace("AssertionError", "(AssertionError, KeyError)")
                + "    try:\n        pass\n    except (AssertionError, ValueError):\n        return False\n",
            )
        ],
        [
            (
                UNIFORM,
                "    while False:\n" + deeper(OTHER_TRY) + UNIFORM.replace("AssertionError:", "(AssertionError,):"),
            )
        ],
        [
            (
                UNIFORM,
                "    check = lambda: isinstance(kv_cache_spec, (AssertionError, ValueError))\n"
                + UNIFORM.replace("AssertionError:", "(AssertionError,):"),
            )
        ],
        [
            (
                UNIFORM,
                UNIFORM.replace(
                    "    try:\n",
                    "    try:\n        pass\n    except (AssertionError, ValueError):\n        return False\n    try:\n",
                ).replace("except AssertionError:", "except (AssertionError,):"),
            )
        ],
        [
            (
                UNIFORM,
                "    for _ in ():\n" + deeper(OTHER_TRY) + UNIFORM.replace("AssertionError:", "(AssertionError,):"),
            )
        ],
        [
            (
                UNIFORM,
                UNIFORM.replace("        _ = kv_cache_spec_values[0].merge(kv_cache_spec_values)\n", "        pass\n")
                .replace("AssertionError", "(AssertionError, ValueError)")
                .replace("    return True", "    kv_cache_spec_values[0].merge(kv_cache_spec_values)\n    return True"),
            )
        ],
        [
            ("\ndef is_kv_cache_spec_uniform(", "\nValueError = KeyError\n\n\ndef is_kv_cache_spec_uniform("),
            *uniform("except (ValueError, AssertionError):\n        return False"),
        ],
        [
            (
                "\ndef is_kv_cache_spec_uniform(",
                "\nfor ValueError in (KeyError,):\n    pass\n\n\ndef is_kv_cache_spec_uniform(",
            ),
            *uniform("except (ValueError, AssertionError):\n        return False"),
        ],
        [
            (
                "    if not kv_cache_spec:\n        # Encoder",
                "    ValueError = KeyError\n    if not kv_cache_spec:\n        # Encoder",
            ),
            *uniform("except (ValueError, AssertionError):\n        return False"),
        ],
        uniform(
            "except (ValueError, AssertionError) as e:\n        logger.debug('%s', e, extra=missing)\n        return False"
        ),
        uniform("except (ValueError, AssertionError):\n        assert False\n        return False"),
        uniform("except (ValueError, AssertionError):\n        del kv_cache_spec_values_\n        return False"),
        [
            (
                "\ndef is_kv_cache_spec_uniform(",
                "\ndef _uniform(specs):\n    values = list(specs.values())\n    values[0].merge(values)\n    return True\n\n\ndef is_kv_cache_spec_uniform(",
            ),
            *uniform("except (ValueError, AssertionError):\n        return False"),
            (
                "    return True\n\n\ndef get_uniform"
                if False
                else UNIFORM.replace(
                    HANDLER, "    except (ValueError, AssertionError):\n        return False\n    return True\n"
                ),
                "    return _uniform(kv_cache_spec)\n",
            ),
        ],
    ],
)


def sharing_at_end(code: str) -> Fix:
    return [(ONLY, ONLY + indented(code))]


KV_SHARING_UNSEEN = Fixes(
    release="0.32.0",
    path="vllm/v1/worker/utils.py",
    right=[
        sharing_at_end(
            f"if isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    {SPEC}.kv_cache_specs.setdefault(layer_name, {SPEC}.kv_cache_specs[target_layer_name])"
        ),
        sharing_at_end(
            f"s = {SPEC}\nif isinstance(s, UniformTypeKVCacheSpecs):\n    s.kv_cache_specs.update({{layer_name: s.kv_cache_specs[target_layer_name]}})"
        ),
        shared(
            f"kv_cache_spec = {SPEC}\nif isinstance(kv_cache_spec, UniformTypeKVCacheSpecs):\n    logger.debug('shared')\n    kv_cache_spec.kv_cache_specs[layer_name] = kv_cache_spec.kv_cache_specs[target_layer_name]"
        ),
        shared(
            f"if isinstance(tgt_spec := {SPEC}, UniformTypeKVCacheSpecs):\n    tgt_spec.kv_cache_specs[layer_name] = tgt_spec.kv_cache_specs[target_layer_name]"
        ),
        [
            (
                APPEND,
                indented(
                    f"g = {SPEC}\nif hasattr(g, 'kv_cache_specs'):\n    g.kv_cache_specs[layer_name] = g.kv_cache_specs[target_layer_name]"
                )
                + APPEND,
            )
        ],
        shared(
            f"per_layer = getattr({SPEC}, 'kv_cache_specs', None)\nif per_layer is not None:\n    per_layer.update({{layer_name: per_layer[target_layer_name]}})"
        ),
        shared(
            f"per_layer = getattr({SPEC}, 'kv_cache_specs', None)\nif per_layer:\n    per_layer.setdefault(layer_name, per_layer[target_layer_name])"
        ),
        shared(
            f"if hasattr({SPEC}, 'kv_cache_specs'):\n    {SPEC}.kv_cache_specs.__setitem__(layer_name, {SPEC}.kv_cache_specs[target_layer_name])"
        ),
        shared(
            f"u = {SPEC}\nif isinstance(u, UniformTypeKVCacheSpecs) and layer_name not in u.kv_cache_specs:\n    u.kv_cache_specs[layer_name] = u.kv_cache_specs[target_layer_name]"
        ),
        shared(
            f"if isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    d = {SPEC}.kv_cache_specs\n    d[layer_name] = d[target_layer_name]"
        ),
        shared(
            f"if isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    owner = {SPEC}.kv_cache_specs[target_layer_name]\n    {SPEC}.kv_cache_specs[layer_name] = owner"
        ),
        shared(f"if 'kv_cache_specs' in dir({SPEC}):\n    {STORE}"),
        shared(f"if not isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    pass\nelse:\n    {STORE}"),
        shared(
            f"for specs in [getattr({SPEC}, 'kv_cache_specs', {{}})]:\n    if specs:\n        specs[layer_name] = specs[target_layer_name]"
        ),
        sharing_at_end(f"if isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    {STORE}"),
        shared(f"if isinstance({SPEC}, (UniformTypeKVCacheSpecs,)):\n    {STORE}"),
        shared(
            f"if hasattr({SPEC}, 'kv_cache_specs'):\n    if layer_name not in {SPEC}.kv_cache_specs:\n        {STORE}"
        ),
        shared(
            f"specs = getattr({SPEC}, 'kv_cache_specs', None)\nif specs is not None and target_layer_name in specs:\n    specs[layer_name] = specs[target_layer_name]"
        ),
        [
            (
                APPEND,
                APPEND
                + "\n        # a shared layer has its owner's spec\n"
                + indented(f"if isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    {STORE}"),
            )
        ],
        shared(
            f"spec = {SPEC}\n\nif hasattr(spec, 'kv_cache_specs'):\n    spec.kv_cache_specs[layer_name] = spec.kv_cache_specs[target_layer_name]"
        ),
    ],
    wrong=[
        shared(f"if isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    {SPEC}.kv_cache_specs.get(layer_name)"),
        shared(f"if isinstance({SPEC}, UniformTypeKVCacheSpecs) and False:\n    {STORE}"),
        shared(f"if isinstance({SPEC}, UniformTypeKVCacheSpecs) and runner_only_attn_layers:\n    {STORE}"),
        shared(f"if isinstance(tgt_kv_cache_group, UniformTypeKVCacheSpecs):\n    {STORE}"),
        shared(
            f"if isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    {SPEC}.kv_cache_specs['layer_name'] = {SPEC}.kv_cache_specs[target_layer_name]"
        ),
        shared(f"lambda: {SPEC}.kv_cache_specs.setdefault(layer_name, {SPEC}.kv_cache_specs[target_layer_name])"),
        shared(f"while False:\n    {STORE}"),
        [(ONLY, ONLY + indented(f"if hasattr({SPEC}, 'kv_cache_specs'):\n    {STORE}", 12))],
        shared(
            f"if isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    {STORE}\nif isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    {SPEC}.kv_cache_specs = {{}}"
        ),
        shared(
            f"if isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    new = {{**{SPEC}.kv_cache_specs}}\n    new[layer_name] = new[target_layer_name]"
        ),
        shared(
            f"spec = {SPEC}\nspec = None\nif isinstance(spec, UniformTypeKVCacheSpecs):\n    spec.kv_cache_specs[layer_name] = spec.kv_cache_specs[target_layer_name]"
        ),
        shared(
            f"if isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    {SPEC}.kv_cache_specs[layer_name + ''] == {SPEC}.kv_cache_specs[target_layer_name]"
            if False
            else f"if isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    assert {SPEC}.kv_cache_specs"
        ),
        shared(f"if getattr({SPEC}, 'kv_cache_spec', None) is not None:\n    {STORE}"),
        shared(
            f"if getattr({SPEC}, 'kv_cache_specs', None) is None:\n    {STORE}"
            if False
            else f"if getattr({SPEC}, 'kv_cache_specs_', None):\n    {STORE}"
        ),
        shared(f"continue\n{UNIFORM_TYPE}{STORE}"),
        shared(
            f"target_layer_name = layer_name\nif layer_name in getattr({SPEC}, 'kv_cache_specs', {{}}):\n    {STORE}"
        ),
        shared(
            "def store(group=tgt_kv_cache_group):\n    group.kv_cache_spec.kv_cache_specs[layer_name] = group.kv_cache_spec.kv_cache_specs[target_layer_name]"
        ),
        shared(f"if runner_only_attn_layers is not None:\n    if hasattr({SPEC}, 'kv_cache_specs'):\n        {STORE}"),
        shared(
            f"if isinstance({SPEC}, UniformTypeKVCacheSpecs):\n    {SPEC}.kv_cache_specs.setdefault(target_layer_name, {SPEC}.kv_cache_specs[target_layer_name])"
        ),
        [
            ("from vllm", "UniformTypeKVCacheSpecs = int\nfrom vllm"),
            ("\ndef add_kv_sharing_layers_to", "\nUniformTypeKVCacheSpecs = int\n\n\ndef add_kv_sharing_layers_to"),
            *shared(UNIFORM_TYPE + STORE),
        ],
    ],
)

TEXT_ONLY_UNSEEN = Fixes(
    release="0.30.0",
    path="vllm/v1/spec_decode/llm_base_proposer.py",
    right=[
        [(END, f"{END}            # drop the mask\n\n            {OFF}")],
        [(END, f"{END}\n        {OFF}")],
        head(
            f"        supported = self.supports_mm_inputs\n        {OFF}        if not supported:\n            return\n        self.supports_mm_inputs = supported\n        {OFF}"
        ),
        [
            (
                WARN,
                f"        if self.supports_mm_inputs:\n            logger.debug('images')\n            {OFF}            logger.warning(\n",
            )
        ],
        [(END, f"{END}            self.supports_mm_inputs = False  # token ids alone\n")],
        [(END, f"{END}            (self.supports_mm_inputs) = False\n")],
        [(END, f"{END}            {OFF}            pass\n")],
        [(END, f"{END}            {OFF}        return\n")],
        [(END, f"{END}            self.supports_mm_inputs = self.warned = False\n")],
        [(END, f"{END}        if self.supports_mm_inputs:\n            {OFF}")],
    ],
    wrong=[
        [(END, f"{END}            self.supports_mm_inputs = self.supports_mm_inputs and True\n")],
        [(END, f"{END}            cls = type(self)\n            cls.supports_mm_inputs = False\n")],
        [(END, f"{END}            {OFF}            vars(self).update(supports_mm_inputs=True)\n")],
        [(END, f"{END}            {OFF}        setattr(self, 'supports_mm_inputs', True)\n")],
        [(END, f"{END}            class Off:\n                def off(self):\n                    {OFF}")],
        [(END, f"{END}            lambda: exec('self.supports_mm_inputs = False')\n")],
        [(END, f"{END}            if not self.supports_mm_inputs:\n                {OFF}")],
        [(END, f"{END}        elif True:\n            {OFF}")],
        head(f"        self = object.__new__(type(self))\n        {OFF}"),
        [
            (
                END,
                f"{END}            {OFF}\n    def _warn_if_multimodal_v2(self):\n        pass\n\n    _warn_if_multimodal = _warn_if_multimodal_v2\n",
            )
        ],
    ],
)

MTP_UNSEEN = Fixes(
    release="0.25.1",
    path="vllm/v1/spec_decode/llm_base_proposer.py",
    right=[
        share(f"{OWN} and share_embeddings  # EAGLE"[:-9]),
        share(f"(share_embeddings) and {OWN}"),
        [
            (
                IF_SHARE,
                IF_SHARE.replace(
                    "if share_embeddings:\n", f"if share_embeddings and {OWN}:\n                # only EAGLE\n"
                ),
            )
        ],
        dims(f"draft_dim != target_dim and {OWN}"),
        dims(f"{OWN} and target_dim != draft_dim"),
        [
            (
                IF_SHARE,
                IF_SHARE.replace(
                    "if share_embeddings:\n", f"if share_embeddings and {OWN}:\n                logger.debug('EAGLE')\n"
                ),
            )
        ],
        share(f"share_embeddings and bool({OWN})"),
        share(f"all((share_embeddings, {OWN}))"),
        share('share_embeddings and hasattr(\n                self.model, "has_own_embed_tokens"\n            )'),
        share(f"share_embeddings and not (not {OWN})"),
    ],
    wrong=[
        share("share_embeddings and hasattr(self.model, 'has_own_embed_token') is False"),
        share(f"share_embeddings and ({OWN} or True)"),
        share(f"share_embeddings if {OWN} else share_embeddings"),
        dims(f"target_dim != draft_dim and ({OWN} or share_embeddings)"),
        share("share_embeddings and hasattr(target_language_model, 'model')"),
        dims("target_dim > draft_dim"),
        [
            *share(f"share_embeddings and {OWN}"),
            (
                "                self.model.model.embed_tokens = target_embed_tokens\n        else:",
                "                self.model.embed_tokens = target_embed_tokens\n        else:",
            ),
        ],
        [
            *share(f"share_embeddings and {OWN}"),
            (
                "            if share_embeddings:\n                if hasattr(self.model.model",
                f"            if share_embeddings and {OWN}:\n                if hasattr(self.model.model",
            ),
        ],
        share(f"share_embeddings and (lambda: {OWN})"),
        share(f"share_embeddings and [{OWN}]"),
    ],
)
UNSEEN: Mapping[str, Fixes] = {
    "kv-spec-uniform-valueerror": KV_SPEC_UNSEEN,
    "kv-sharing-uniform-specs": KV_SHARING_UNSEEN,
    "draft-text-only": TEXT_ONLY_UNSEEN,
    "mtp-share-embeddings": MTP_UNSEEN,
}
