"""Which launches does Humming get for a matrix? vLLM's functions, and a FAKE of Humming, which needs a GPU."""

import json
import sys
from types import ModuleType
from unittest.mock import patch

DENSE = {"use_batch_invariant": False, "use_f16_accum": False, "gemm_type": "dense"}
RELEASED = {"block_shape": [8, 128, 64], "num_stages": 4}
ENDS = (8, 16, 24, 32, 40, 1 << 30)
INTERVALS = [[low, high, RELEASED] for low, high in zip((0, *ENDS), ENDS, strict=False)]
GATE_UP, OTHER = (43008, 5376), (1024, 1024)


class HummingKernel:
    """A FAKE: it refuses blocks of 512, and its last call is kept."""

    prepared = None

    @classmethod
    def _resolve_configs(cls, layer, compute, tuning, device):
        assert tuning is None
        return json.loads(layer), json.loads(compute), INTERVALS

    @classmethod
    def compile_many(cls, specs, device):
        assert device == "the GPU"
        for _, config in specs:
            assert config["block_shape"][1] != 512, "no such block"

    @classmethod
    def prepare_kernels(cls, layer, compute=None, tuning=None, device=None):
        cls.prepared = tuning and json.loads(tuning)
        return "kernels"


def matrix(shape=GATE_UP, **more):
    """Return a matrix as Humming names it in vLLM."""
    kind = {
        "sm_version": 90,
        "num_experts": 0,
        "a_dtype": "bfloat16",
        "b_dtype": "float4e2m1",
        "bs_dtype": "float8e4m3",
    }
    return json.dumps(kind | {"shape_n": shape[0], "shape_k": shape[1], "weight_scale_group_size": 16} | more)


def handed_in(layer, **compute):
    """Return what Humming is told for a matrix, as its custom op calls it."""
    assert HummingKernel.prepare_kernels(layer, json.dumps(DENSE | compute), None, "the GPU") == "kernels"
    return HummingKernel.prepared


def probe():
    sys.modules.update({name: ModuleType(name) for name in ("humming", "humming.kernel", "humming.kernel.humming")})
    sys.modules["humming.kernel.humming"].HummingKernel = HummingKernel
    from vllm.model_executor.layers.quantization.utils.humming import linear

    if not hasattr(linear, "hand_in_launches"):
        assert handed_in(matrix()) is None
        return True, "Humming is left to choose for every matrix"
    linear.hand_in_launches()
    linear.hand_in_launches()
    few = {shape: handed_in(matrix(shape)) for shape in {key[1:3] for key in linear.MATRIX_LAUNCH}}
    assert all([end[:2] for end in told] == [end[:2] for end in INTERVALS] for told in few.values()), (
        "as many intervals"
    )
    for (_, *shape, most), row in linear.MATRIX_LAUNCH.items():
        check_launch(few[tuple(shape)], most, row)
    check_others()
    check_own_rows(linear)
    return False, f"Humming gets launches of the table for {len(few)} shapes of matrices"


def check_launch(told, most, row):
    """One interval has the row of the table: a block holds all rows, by TMA with wgmma and without it for mma."""
    n, k, warp_n, warp_k, stages, blocks, mma = row
    (launch,) = [launch for _, high, launch in told if high == most]
    rows = max(most, 16) if mma == "mma" else most
    assert launch["block_shape"] == [rows, n, k], launch
    assert launch["warp_shape"] == [rows, warp_n, warp_k], launch
    assert [launch[name] for name in ("num_stages", "num_ctas_per_sm", "mma_type")] == [stages, blocks, mma], launch
    assert launch["use_tma"] == launch["use_warp_spec"] == (mma == "wgmma")


def check_others():
    """What is launched as released: Humming is told nothing."""
    assert handed_in(matrix(OTHER)) is None
    assert handed_in(matrix(sm_version=100)) is None, "no figures for Blackwell"
    for own in ("a_dtype", "b_dtype", "bs_dtype"):
        assert handed_in(matrix(**{own: "float16"})) is None
    assert handed_in(matrix(weight_scale_group_size=32)) is None
    assert handed_in(matrix(num_experts=8)) is None
    for own in ({"use_batch_invariant": True}, {"use_f16_accum": True}, {"gemm_type": "indexed"}):
        assert handed_in(matrix(), **own) is None
    HummingKernel.prepare_kernels(matrix(), json.dumps(DENSE), '{"of": "the caller"}', "the GPU")
    assert HummingKernel.prepared == {"of": "the caller"}


def check_own_rows(linear):
    """Rows that somebody measured serve the GPU that they name; others, and what Humming refuses, are ignored."""
    good = "matrix:12,1024,1024,16=128,128,64,32,4,2,mma"
    bad = "prompt:12,512,1=16,64,4,2 matrix: matrix:9,1,1=1,1,1,1,1,1,mma matrix:9,1,1,8=1,1,1,1,1,1,umma"
    bad += " matrix:9,1,1,8=1,1,1,1,1,-1,mma matrix:\uff19,1,1,8=1,1,1,1,1,1,mma matrix:9,1,1,8=1,1,1,1,1,mma"
    fits = (12, *OTHER, 16, 128, 128, 64, 32, 4, 2)
    for place in range(len(fits)):  # no size, stage or row is nothing, or more than any GPU has
        for value in (0, 99999) if place > 3 else (0,):
            one = [str(value if place == at else number) for at, number in enumerate(fits)]
            bad += f" matrix:{','.join(one[:4])}={','.join(one[4:])},mma"
    own = linear._own_launches(f"{bad} {good} matrix:12,1024,1024,8=512,128,64,32,4,2,wgmma")
    assert own == {
        (12, *OTHER, 16): (128, 128, 64, 32, 4, 2, "mma"),
        (12, *OTHER, 8): (512, 128, 64, 32, 4, 2, "wgmma"),
    }
    linear._launches.cache_clear()
    with patch.dict(linear.OWN_LAUNCH, own):
        told = handed_in(matrix(OTHER, sm_version=120))
        check_launch(told, 16, own[12, *OTHER, 16])
        assert [launch for _, high, launch in told if high != 16] == [RELEASED] * 5, "the one that it refuses"
        assert handed_in(matrix(OTHER)) is None
