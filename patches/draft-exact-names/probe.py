"""Asks a compressed-tensors configuration in the form of Google's W4A16 which modules of a draft model are quantized.

The configuration is read and mapped to vLLM's names by vLLM's own functions. Each module is asked for by its name as a
target, where the answers of released vLLM are right, and by its name below draft_model.
"""

TOWER = "vision_tower.encoder.layers.0"
DECODER = "language_model.model.layers"
FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
IGNORE = [
    "model.vision_tower.encoder.layers.0.mlp.up_proj.linear",
    "model.vision_tower.encoder.layers.0.self_attn.q_proj.linear",
    "model.embed_vision.embedding_projection",
    "model.language_model.layers.1.self_attn.q_proj",
    "model.language_model.layers.1.self_attn.k_proj",
    "model.language_model.layers.1.self_attn.v_proj",
    "re:.*audio_tower.*",
]
EIGHT_BITS = "model.language_model.layers.0.mlp.down_proj"
BITS = {
    f"{TOWER}.mlp.up_proj.linear": None,
    f"{TOWER}.self_attn.q_proj.linear": None,
    "embed_vision.embedding_projection": None,
    "audio_tower.layers.0.feed_forward.ffw_layer": None,
    f"{DECODER}.1.self_attn.qkv_proj": None,
    f"{DECODER}.0.self_attn.qkv_proj": 4,
    f"{DECODER}.0.mlp.gate_up_proj": 4,
    f"{DECODER}.0.mlp.down_proj": 8,
    f"{DECODER}.1.mlp.down_proj": 4,
    f"{TOWER}.mlp.down_proj.linear": 4,
}
"""vLLM's name of a module of a target → the bits that its configuration gives it, None where it is not quantized."""


def probe() -> tuple[bool, str]:
    check_target()
    wrong = {name: found for name, bits in BITS.items() if (found := bits_of(f"draft_model.{name}")) != bits}
    if wrong:
        assert set(wrong) <= {name for name, bits in BITS.items() if bits != 4}, f"expressions do not match: {wrong}"
        name, found = next(iter(wrong.items()))
        return True, f"draft_model.{name} is taken for int{found}, and {len(wrong) - 1} more are wrong"
    check_expressions()
    check_other_names()
    return False, f"all {len(BITS)} modules of a draft model are what its configuration says"


def configuration(ignore=IGNORE):
    """The configuration of a checkpoint, mapped to the names that vLLM has for Gemma 4."""
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
    from vllm.model_executor.models.gemma4_mm import Gemma4ForConditionalGeneration

    groups = {"group_0": group(8, EIGHT_BITS), "group_1": group(4, "Linear")}
    told = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    config = CompressedTensorsConfig.from_config({**told, "ignore": list(ignore)})
    config.packed_modules_mapping = FUSED
    config.apply_vllm_mapper(Gemma4ForConditionalGeneration.hf_to_vllm_mapper)
    return config


def group(bits: int, target: str) -> dict:
    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    return {"targets": [target], "weights": weights, "input_activations": None, "output_activations": None}


def bits_of(name: str, config=None) -> int | None:
    """The bits of a linear layer's weights, by its name, as vLLM would quantize it."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    layer = linear()
    method = (config or configuration()).get_quant_method(layer, name)
    if isinstance(method, UnquantizedLinearMethod):
        return None
    return 32 // layer.scheme.pack_factor


def linear():
    """A linear layer, by its class alone."""
    from torch.nn import Module
    from vllm.model_executor.layers.linear import LinearBase

    layer = object.__new__(LinearBase)
    Module.__init__(layer)
    return layer


def check_target() -> None:
    """A target's modules are what its configuration says, in every release."""
    found = {name: bits_of(name) for name in BITS}
    assert found == BITS, found


def check_expressions() -> None:
    """Expressions match the whole name, as people wrote them for a draft; one that is for the target alone does not."""
    tower = f"draft_model.{TOWER}.mlp.up_proj.linear"
    for expression in ("re:.*vision_tower.*", "re:draft_model[.]vision_tower.*", "re:.*[.]vision_tower[.].*"):
        assert bits_of(tower, configuration([expression])) is None, expression
    assert bits_of(tower, configuration(["re:nothing.*"])) == 4


def check_other_names() -> None:
    """No other name is cut: one that only begins so, one that has the prefix further on, and one that has it twice."""
    for name in ("draft_models", "my.draft_model", "draft_model.draft_model"):
        assert bits_of(f"{name}.{TOWER}.mlp.up_proj.linear") == 4, name
    config = configuration()
    before = list(config.ignore)
    assert bits_of(f"draft_model.{DECODER}.1.self_attn.qkv_proj", config) is None
    assert config.ignore == before, "the list of names stays as it was read"
