"""Drafts over three KV cache groups: the target's alone, one of sliding layers, one of full layers with larger blocks.

Two requests, of which one has a rejected token; the slots that each layer would write are worked out once more here.
Attention backend, block tables and runner are stand-ins; the proposer, its groups and its metadata are vLLM's.
"""

from types import SimpleNamespace
from unittest.mock import patch

SLIDING, FULL = ("draft.0", "draft.2"), ("draft.1",)
SIZES = {0: 16, 1: 16, 2: 32}  # block size of each group
BLOCKS = {0: [[1, 2, 3, 4], [5, 6, 7, 8]], 1: [[11, 12, 13, 14], [15, 16, 17, 18]], 2: [[21, 22], [23, 24]]}
LENGTHS, POSITIONS, REJECTED = (3, 2), [30, 31, 32, 15, 16], 2  # tokens of each request; index of the rejected token


class Builder:
    """Stands in for an attention backend: its metadata is what it was asked to build from."""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device) -> None:
        self.kv_cache_spec = kv_cache_spec

    def build_for_drafting(self, common_attn_metadata, draft_index):
        return common_attn_metadata


class Backend:
    """Names itself and its builder."""

    get_builder_cls = staticmethod(lambda: Builder)
    full_cls_name = staticmethod(lambda: ("stand-in", "Backend"))


def probe() -> tuple[bool, str]:
    from vllm.v1.spec_decode import draft_model, eagle

    drafter, groups = make_drafter(draft_model.DraftModelProposer)
    layers = {name: SimpleNamespace(get_attn_backend=lambda: Backend) for name in (*SLIDING, *FULL)}
    place = draft_model if hasattr(draft_model, "get_layers_from_vllm_config") else eagle
    try:
        with patch.object(place, "get_layers_from_vllm_config", lambda *_: layers):
            drafter.initialize_attn_backend(SimpleNamespace(kv_cache_groups=groups), list(SIZES.values()))
    except AssertionError as error:
        return True, f"AssertionError: {error}"
    assert drafter.block_size == SIZES[drafter.kv_cache_gid]
    check_step(drafter, LENGTHS, POSITIONS, draft_index=0, nowhere={REJECTED})
    check_step(drafter, (1, 1), [33, 17], draft_index=1, nowhere=set())
    check_step(drafter, (1, 1), [0, 18], draft_index=2, nowhere={0})  # the first request is at its end
    return False, f"{len(drafter.draft_attn_groups)} groups, each layer writes into the blocks of its own"


def make_drafter(proposer):
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, SlidingWindowSpec

    options = {"num_kv_heads": 1, "dtype": torch.bfloat16}
    sliding = SlidingWindowSpec(**options, block_size=16, head_size=256, sliding_window=512)
    full = FullAttentionSpec(**options, block_size=32, head_size=512)
    target = FullAttentionSpec(**options, block_size=16, head_size=512)
    groups = [
        KVCacheGroupSpec(["target.0"], target),
        KVCacheGroupSpec([*SLIDING], sliding),
        KVCacheGroupSpec([*FULL], full),
    ]
    tables = {
        gid: SimpleNamespace(get_device_tensor=lambda count, rows=rows: torch.tensor(rows, dtype=torch.int32)[:count])
        for gid, rows in BLOCKS.items()
    }
    drafter = object.__new__(proposer)
    drafter.vllm_config, drafter.device, drafter.max_model_len, drafter.method = None, "cpu", 64, "draft_model"
    drafter._draft_attn_layer_names, drafter.draft_attn_groups = {*SLIDING, *FULL}, []
    drafter._slot_mapping_buffer = torch.zeros(16, dtype=torch.int64)
    drafter.positions = torch.zeros(16, dtype=torch.int64)
    drafter.runner = SimpleNamespace(input_batch=SimpleNamespace(block_table=tables))
    return drafter, groups


def check_step(drafter, lengths, positions, *, draft_index, nowhere) -> None:
    """One step of propose(): metadata for every group, then the slots of every layer."""
    import torch
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.spec_decode.utils import PADDING_SLOT_ID

    count, starts = len(positions), torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32)
    drafter.positions[:count] = torch.tensor(positions)
    requests = [0] * lengths[0] + [1] * lengths[1]

    def slots(gid):
        size = SIZES[gid]
        found = [BLOCKS[gid][row][at // size] * size + at % size for row, at in zip(requests, positions, strict=True)]
        return [PADDING_SLOT_ID if index in nowhere else slot for index, slot in enumerate(found)]

    shared = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor([40, 20], dtype=torch.int32),
        num_reqs=2,
        num_actual_tokens=count,
        max_query_len=max(lengths),
        max_seq_len=40,
        block_table_tensor=torch.tensor(BLOCKS[0], dtype=torch.int32),
        slot_mapping=torch.tensor(slots(0)),
    )
    for group in drafter.draft_attn_groups:
        own = group.get_metadata_builder().build_for_drafting(common_attn_metadata=shared, draft_index=draft_index)
        assert own.block_table_tensor.tolist() == BLOCKS[group.kv_cache_group_id], own.block_table_tensor
        assert own.slot_mapping.tolist() == slots(group.kv_cache_group_id), own.slot_mapping
    padded = count + 3  # as for a CUDA graph
    mapping = drafter._get_slot_mapping(padded, shared.slot_mapping)
    for gid, names in {1: SLIDING, 2: FULL}.items():
        for name in names:
            assert mapping[name].tolist() == slots(gid) + [PADDING_SLOT_ID] * 3, (name, mapping[name])
