"""Adds a layer that reads another layer's KV cache to a group of uniform type, then asks for its spec as runners do."""


def probe() -> tuple[bool, str]:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, UniformTypeKVCacheSpecs
    from vllm.v1.worker.utils import add_kv_sharing_layers_to_kv_cache_groups

    options = {"block_size": 16, "num_kv_heads": 1, "dtype": torch.bfloat16}
    specs = {
        "draft.layers.0.self_attn.attn": FullAttentionSpec(**options, head_size=256, sliding_window=512),
        "draft.layers.4.self_attn.attn": FullAttentionSpec(**options, head_size=512),
    }
    group = KVCacheGroupSpec(list(specs), UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs=dict(specs)))
    reader, owner = "draft.layers.5.self_attn.attn", "draft.layers.0.self_attn.attn"
    add_kv_sharing_layers_to_kv_cache_groups({reader: owner}, [group])
    try:
        found = group.kv_cache_spec.kv_cache_specs[reader]
    except KeyError as error:
        return True, f"KeyError: {error}"
    assert found == specs[owner], found
    assert reader in group.layer_names
    return False, f"the spec of {reader} is that of {owner}"
