"""Return one vLLM's answer to a command line, on a fake machine. Needs a Python with vLLM's dependencies.

    python oracle_engine.py MACHINE < questions > answers

vLLM's own sources come first on PYTHONPATH. Empty modules replace the compiled ones, and the platform is vLLM's own
CUDA or CPU platform with the properties of a named machine. A question is a line of JSON: {"argv": [...], "env": {}},
also with "layers": true, "ranks": GPUs, {"modes": [argv, ...]}, or {"flags": true}. So is an answer. A process forked
after vLLM's import answers each question, so that none leaves traces. Only the standard library and vLLM are used.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import io
import json
import os
import sys
import traceback
import types
import typing
from collections.abc import Iterator
from typing import Any

GIB = 2**30
MACHINES: dict[str, dict[str, Any]] = {
    "gb10": {"name": "NVIDIA GB10", "memory": 130_663_006_208, "capability": (12, 1), "gpus": 1, "nvml_memory": False},
    "h100": {"name": "NVIDIA H100 80GB HBM3", "memory": 85_029_158_912, "capability": (9, 0), "gpus": 8},
    "h200": {"name": "NVIDIA H200", "memory": 150_122_528_768, "capability": (9, 0), "gpus": 8},
    "b200": {"name": "NVIDIA B200", "memory": 191_514_017_792, "capability": (10, 0), "gpus": 8},
    "a100": {"name": "NVIDIA A100-SXM4-80GB", "memory": 85_095_874_560, "capability": (8, 0), "gpus": 8},
    "rtx-3090": {"name": "NVIDIA GeForce RTX 3090", "memory": 25_296_044_032, "capability": (8, 6), "gpus": 8},
    "l40s": {"name": "NVIDIA L40S", "memory": 47_696_576_512, "capability": (8, 9), "gpus": 8},
    "rtx-5090": {"name": "NVIDIA GeForce RTX 5090", "memory": 33_668_988_928, "capability": (12, 0), "gpus": 8},
    "cpu": {"name": "cpu", "memory": 64 * GIB, "capability": None, "gpus": 0},
}
_COMPILED = (
    *("vllm._C", "vllm._C_stable_libtorch", "vllm._C_AVX2", "vllm._C_AVX512"),
    *("vllm._moe_C", "vllm._moe_C_stable_libtorch"),
    *("vllm._flashmla_C", "vllm._flashmla_extension_C", "vllm._qutlass_C", "vllm._rocm_C", "vllm.cumem_allocator"),
    *("vllm.vllm_flash_attn._vllm_fa2_C", "vllm.vllm_flash_attn._vllm_fa3_C"),
    "vllm.third_party.flashmla.flash_mla_interface",
    *("vllm.spinloop", "vllm._rs", "vllm.fs_io_C"),
)  # fmt: skip
_WITH_CUDA: set[str] = set()
"""Packages that vLLM's wheel for CUDA requires and a CPU's environment lacks; filled for questions about layers."""
RESOLVED = (
    ("scheduler_config", "max_num_batched_tokens"),
    ("scheduler_config", "max_num_seqs"),
    ("scheduler_config", "enable_chunked_prefill"),
    ("scheduler_config", "async_scheduling"),
    ("scheduler_config", "disable_hybrid_kv_cache_manager"),
    ("scheduler_config", "disable_chunked_mm_input"),
    ("model_config", "max_model_len"),
    ("model_config", "quantization"),
    ("cache_config", "cache_dtype"),
    ("cache_config", "block_size"),
    ("cache_config", "gpu_memory_utilization"),
    ("cache_config", "enable_prefix_caching"),
    ("parallel_config", "tensor_parallel_size"),
    ("speculative_config", "method"),
    ("speculative_config", "num_speculative_tokens"),
    ("speculative_config", "draft_tensor_parallel_size"),
)
"""Fields of VllmConfig to report for an accepted command line."""


class _Empty(types.ModuleType):
    """A fake of a compiled module, which has only a name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (int,), {"__new__": lambda cls, *args, **kwargs: int.__new__(cls, 1)})


class _Operator:
    """A fake of a compiled operator, which nobody calls."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name in _COMPILED or name.partition(".")[0] in _WITH_CUDA:
            return importlib.machinery.ModuleSpec(name, self, is_package=name in _WITH_CUDA or None)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


facts: dict[str, Any] = {}
"""The properties of the fake machine of this process."""


def pretend(machine: str) -> None:
    """Give this process the properties of a machine. Call this before importing anything of vLLM."""
    facts.update(MACHINES[machine])
    sys.meta_path.insert(0, _Finder())
    _pretend_version("cpu" if facts["capability"] is None else "")
    import vllm.platforms as platforms

    if facts["capability"] is None:
        from vllm.platforms.cpu import CpuPlatform

        platforms._current_platform = CpuPlatform()
        return
    _pretend_torch()
    platforms._current_platform = _cuda()()
    triton = importlib.import_module("vllm.triton_utils")
    for module in (triton, importlib.import_module("vllm.triton_utils.importing")):
        module.HAS_TRITON = True


def _pretend_version(local: str) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "vllm":
            release = os.environ["ORACLE_RELEASE"]
            return f"{release}+{local}" if local else release
        return real(name)

    importlib.metadata.version = version


def _properties(*_args: Any, **_more: Any) -> Any:
    major, minor = facts["capability"]
    return types.SimpleNamespace(
        name=facts["name"],
        total_memory=facts["memory"],
        major=major,
        minor=minor,
        multi_processor_count=132,
        is_integrated=facts["capability"] == (12, 1),
    )


def _pretend_torch() -> None:
    import torch

    torch.version.cuda = "13.0"
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: facts["gpus"]
    torch.cuda.get_device_properties = _properties
    torch.cuda.get_device_capability = lambda *args, **kwargs: facts["capability"]
    torch.cuda.get_device_name = lambda *args, **kwargs: facts["name"]
    torch.cuda.current_device = lambda: 0
    namespace = type(torch.ops._C)
    real = namespace.__getattr__

    def operator(self: Any, name: str) -> Any:
        """Answer questions such as cutlass_scaled_mm_supports_fp8 with yes; kernels stay missing."""
        if "_supports_" in name:
            return lambda *args, **kwargs: True
        return real(self, name)

    namespace.__getattr__ = operator


def _cuda() -> Any:
    """Return vLLM's own CUDA platform, with the driver's answers replaced."""
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    def total_memory(cls: Any, device_id: int = 0) -> int:
        if not facts.get("nvml_memory", True) and not _falls_back():
            raise RuntimeError("NVML: Not Supported")
        return int(facts["memory"])

    return type(
        "PretendedPlatform",
        (CudaPlatformBase,),
        {
            "get_device_capability": classmethod(lambda cls, device_id=0: DeviceCapability(*facts["capability"])),
            "get_device_name": classmethod(lambda cls, device_id=0: facts["name"]),
            "get_device_uuid": classmethod(lambda cls, device_id=0: "GPU-0"),
            "get_device_total_memory": classmethod(total_memory),
            "is_fully_connected": classmethod(lambda cls, ids: True),
            "device_count": classmethod(lambda cls: facts["gpus"]),
            "log_warnings": classmethod(lambda cls: None),
            "is_integrated_gpu": classmethod(lambda cls, device_id=0: facts["capability"] == (12, 1)),
        },
    )


def _falls_back() -> bool:
    """Return whether this release reads the memory elsewhere if NVML does not report it."""
    import inspect

    from vllm.platforms import cuda

    return "NVMLError" in inspect.getsource(cuda.NvmlCudaPlatform.get_device_total_memory)


def imported() -> None:
    """Import what every question needs, and modules for which vLLM would start processes."""
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda function: function()
    importlib.import_module("vllm.entrypoints.cli.serve")
    importlib.import_module("vllm.engine.arg_utils")


def parser() -> Any:
    """Return the parser of `vllm serve`."""
    serve = importlib.import_module("vllm.entrypoints.cli.serve")
    argparse_utils = importlib.import_module(serve.FlexibleArgumentParser.__module__)
    commands = argparse_utils.FlexibleArgumentParser(prog="vllm").add_subparsers()
    return serve.ServeSubcommand().subparser_init(commands)


def flags() -> dict[str, Any]:
    """Return every option of the parser with all its spellings; including undocumented ones."""
    made = parser()
    spelled: dict[int, list[str]] = {}
    for spelling, action in made._option_string_actions.items():
        spelled.setdefault(id(action), []).append(spelling)
    found = {}
    for action in made._actions:
        spellings = sorted({*action.option_strings, *spelled.get(id(action), ())})
        name = next((one for one in action.option_strings if one.startswith("--")), None)
        if name and action.dest != "help":
            choices = sorted(map(str, action.choices)) if action.choices else None
            negative = sorted(getattr(action, "negative_option_strings", ()))
            bare = action.nargs in (0, "?")
            found[name] = {"spellings": spellings, "choices": choices, "bare": bare, "negative": negative}
    from vllm import envs
    from vllm.config import SpeculativeConfig

    variables = sorted(envs.environment_variables)
    keys = sorted(field for field in SpeculativeConfig.__dataclass_fields__)
    return {"flags": found, "environment": variables, "speculative": keys}


def judged(argv: list[str], env: dict[str, str]) -> dict[str, Any]:
    """Return that a command line is accepted, with the resolved values, or vLLM's own error."""
    os.environ.update(env)
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            args = _parsed(argv)
            serve = importlib.import_module("vllm.entrypoints.cli.serve")
            if check := getattr(serve, "validate_parsed_serve_args", None):
                check(args)
            config = _engine_args().from_cli_args(args).create_engine_config(_usage())
    except SystemExit:
        return {"accepted": False, "stage": "parser", "why": stderr.getvalue().strip().splitlines()[-1:] or [""]}
    except BaseException as error:  # any exception of vLLM is its answer
        return {"accepted": False, "stage": "engine", "type": type(error).__name__, "why": [str(error)[-2000:]]}
    if said := _misread(env):
        return {"accepted": False, "stage": "environment", "why": [said]}
    return {"accepted": True, "resolved": _resolved(config)}


def _parsed(argv: list[str]) -> Any:
    """Return the arguments of `vllm serve`, with the model as ServeSubcommand.cmd takes it."""
    args = parser().parse_args(argv)
    if getattr(args, "model_tag", None):
        args.model = args.model_tag
    return args


def _misread(env: dict[str, str]) -> str | None:
    """Return what vllm/envs.py raises for one of these variables, wherever a server reads it."""
    from vllm import envs

    for name in env:
        if name in envs.environment_variables:
            try:
                envs.environment_variables[name]()
            except Exception as error:
                return f"{name}: {type(error).__name__}: {error}"
    return None


def layers(argv: list[str], env: dict[str, str]) -> dict[str, Any]:
    """Return the attention backend of each kind of layer: target and head built on torch's meta device.

    So the selector is asked as a start asks it, by the layers themselves, with their own head sizes and masks.
    """
    import torch

    os.environ.update(env)
    _all_libraries()
    config = _engine_args().from_cli_args(_parsed(argv)).create_engine_config(_usage())
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model

    drafting = config.speculative_config
    _any_operator()
    for name in ("zeros", "empty"):  # some backends allocate a buffer on the GPU while their layer is built
        setattr(torch, name, _without_gpu(getattr(torch, name)))
    with set_current_vllm_config(config):
        _one_process()
    with set_current_vllm_config(config), torch.device("meta"):
        torch.set_default_dtype(config.model_config.dtype)
        initialize_model(vllm_config=config)
        target = _backends(config)
        if drafting and drafting.draft_model_config and drafting.draft_model_config is not config.model_config:
            _draft(config, drafting, initialize_model)
    everything = _backends(config)
    drafted = {name: kind for name, kind in everything.items() if name not in target}
    with set_current_vllm_config(config):
        supports = {"target": _support(config, list(target)), "draft": _support(config, list(drafted))}
        whole = _resolved_mode(config, _support(config, list(everything)))
    found = {"target": _kinds(target), "draft": _kinds(drafted), "supports": supports, "graphs": whole}
    return {**found, "resolved": _resolved(config)}


_LAYERS = ({"head_size": 256, "has_sliding_window": True}, {"head_size": 512, "has_sliding_window": False})
"""The two kinds of layers of Gemma 4."""


def refusals(argv: list[str]) -> dict[str, Any]:
    """Return backend → KV format → whether images are masked → what vLLM has against it, for Gemma 4's layers.

    Each backend's own validate_configuration is asked, with the argument names of the release; "" is the selector's
    answer where no backend is set.
    """
    import torch

    _all_libraries()
    plain = ["--limit-mm-per-prompt", '{"image": 0, "video": 0, "audio": 0}']
    configs = {
        (masks, fp8): _engine_args()
        .from_cli_args(_parsed([*argv, *([] if masks else plain), *(["--kv-cache-dtype", "fp8"] if fp8 else [])]))
        .create_engine_config(_usage())
        for masks in (True, False)
        for fp8 in (True, False)
    }
    from vllm.config import set_current_vllm_config
    from vllm.config.cache import CacheDType
    from vllm.platforms.interface import DeviceCapability

    asked = {"dtype": torch.bfloat16, "block_size": None, "attn_type": "decoder"}
    asked["device_capability"] = DeviceCapability(*facts["capability"])
    found: dict[str, Any] = {}
    for masks in (True, False):
        for kv in typing.get_args(CacheDType):
            # some backends read the whole server's format, by which its config chooses FlashAttention's version
            config = configs[masks, kv.startswith("fp8")]
            config.cache_config.cache_dtype = kv
            with set_current_vllm_config(config):
                for name, validate in _validators():
                    given = {**asked, "kv_cache_dtype": kv, "use_mm_prefix": masks}
                    reasons = [reason for layer in _LAYERS for reason in _reasons(validate, {**given, **layer})]
                    found.setdefault(name, {}).setdefault(kv, {})[str(masks)] = list(dict.fromkeys(reasons))
    return found


def _validators() -> Iterator[tuple[str, Any]]:
    """Yield each backend's name and its validate_configuration; "" and one that asks the selector."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import get_attn_backend

    def choose(**layer: Any) -> list[str]:
        named = inspect.signature(get_attn_backend).parameters
        get_attn_backend(**{name: value for name, value in layer.items() if name in named})
        return []

    yield "", choose
    for name, member in AttentionBackendEnum.__members__.items():
        try:
            validate = member.get_class().validate_configuration
        except Exception:
            continue  # a name without a class, or one whose packages no installation for CUDA has
        yield name, validate


def _reasons(validate: Any, layer: dict[str, Any]) -> list[str]:
    """Return what one backend has against one layer; what a release asks for and this does not know is off."""
    parameters = inspect.signature(validate).parameters.values()
    required = [one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    named = {one.name for one in parameters} if required else set(layer)
    values = dict.fromkeys(required, False) | {name: value for name, value in layer.items() if name in named}
    try:
        return list(validate(**values))
    except Exception as error:
        return [str(error).partition(" with ")[0][:200]]


def rank_bytes(argv: list[str], env: dict[str, str], gpus: int) -> dict[str, Any]:
    """Return the bytes that rank 0 of so many GPUs holds of target and head, by part of the model.

    The classes are built on torch's meta device with the size of the tensor parallel group set, so that each layer
    divides itself as it does at a start. Parameters and buffers count once, however many modules share them.
    """
    import torch

    os.environ.update(env)
    _all_libraries()
    _any_operator()  # a configuration with several GPUs imports the fusions of their sums
    line = [*argv, *(("--tensor-parallel-size", str(gpus)) if gpus > 1 else ())]
    config = _engine_args().from_cli_args(parser().parse_args(line)).create_engine_config(_usage())
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.model_executor.model_loader.utils import initialize_model

    for name in ("zeros", "empty"):
        setattr(torch, name, _without_gpu(getattr(torch, name)))
    with set_current_vllm_config(config):
        _one_process()
    parallel_state._TP.world_size = gpus
    built = []

    def building(*args: Any, **more: Any) -> Any:
        built.append(initialize_model(*args, **more))
        return built[-1]

    drafting = config.speculative_config
    with set_current_vllm_config(config), torch.device("meta"):
        torch.set_default_dtype(config.model_config.dtype)
        building(vllm_config=config)
        if drafting and drafting.draft_model_config and drafting.draft_model_config is not config.model_config:
            _draft(config, drafting, building)
    seen: set[int] = set()
    roles = ("target", "draft")
    return {role: _bytes_by_part(model, seen) for role, model in zip(roles, built, strict=False)}


_PARTS = (
    *(("towers", name) for name in ("vision_tower", "vision_embedder", "embed_vision", "audio_tower", "embed_audio")),
    ("lm_head", "lm_head"),
    ("per-layer", "embed_tokens_per_layer"),
    ("per-layer", "per_layer_model_projection"),
    ("per-layer", "per_layer_projection_norm"),
    ("embeddings", "embed_tokens"),
    ("experts", ".experts."),
    ("queries", ".qkv_proj."),
    ("queries", ".q_proj."),
    ("output", ".o_proj."),
    ("mlp", ".mlp."),
)
"""Part → a word in the name of a parameter, in the order in which they are looked for; what is left is whole."""


def _bytes_by_part(model: Any, seen: set[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    modules = dict(model.named_modules())
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in tensors:
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        nbytes = tensor.numel() * tensor.element_size()
        part = _part(name)
        if part == "queries":
            owner = modules[name.rpartition(".")[0]]
            keys = 2 * getattr(owner, "num_kv_heads", 0)
            heads = getattr(owner, "num_heads", 1) + keys
            found["keys"] = found.get("keys", 0) + nbytes * keys // heads
            nbytes -= nbytes * keys // heads
        found[part] = found.get(part, 0) + nbytes
    return found


def _part(name: str) -> str:
    if name.endswith("cos_sin_cache"):
        return "rotary"
    for part, word in _PARTS:
        if word in f".{name}":
            return part
    return "whole"


def _support(config: Any, names: list[str]) -> str | None:
    """Return the weakest support for full graphs among the metadata builders of these layers; None for no layer."""
    found = []
    for name in names:
        layer = config.compilation_config.static_forward_context[name]
        builder = layer.attn_backend.get_builder_cls()
        found.append(builder.get_cudagraph_support(config, layer.get_kv_cache_spec(config)))
    return min(found, key=lambda level: level.value).name if found else None


def _resolved_mode(config: Any, level: str | None) -> str:
    """Return the mode of a server whose weakest layer has this support, as its model runner asks for it."""
    import inspect

    from vllm.v1.attention.backend import AttentionCGSupport

    compilation = config.compilation_config
    drafting = config.speculative_config
    tokens = 1 + (drafting.num_speculative_tokens if drafting else 0)
    compiled = compilation.mode is not None and compilation.mode.name == "VLLM_COMPILE"
    known = inspect.signature(compilation.resolve_cudagraph_mode_and_sizes).parameters
    more = {"use_v2_model_runner": True, "piecewise_capture_available": compiled}
    try:
        found = compilation.resolve_cudagraph_mode_and_sizes(
            AttentionCGSupport[level or "ALWAYS"], "backend", tokens, **{k: v for k, v in more.items() if k in known}
        )
    except ValueError:
        return "REFUSED"
    return str(found.name)


def modes(argvs: list[list[str]], env: dict[str, str]) -> dict[str, Any]:
    """Return, for each command line, support → the mode of graphs that vLLM resolves, or vLLM's refusal."""
    import copy

    from vllm.v1.attention.backend import AttentionCGSupport

    os.environ.update(env)
    found: dict[str, Any] = {}
    for argv in argvs:
        try:
            config = _engine_args().from_cli_args(parser().parse_args(argv)).create_engine_config(_usage())
        except BaseException as error:
            found[json.dumps(argv)] = f"{type(error).__name__}: {str(error)[-300:]}"
            continue
        whole = config.compilation_config
        row = {}
        for level in AttentionCGSupport:
            config.compilation_config = copy.copy(whole)
            row[level.name] = _resolved_mode(config, level.name)
        found[json.dumps(argv)] = row
    return found


def _all_libraries() -> None:
    """Make vLLM find FlashAttention 2 to 4 and FlashInfer, as an installation for CUDA has them."""
    interface = importlib.import_module("vllm.vllm_flash_attn.flash_attn_interface")
    for version in (2, 3, 4):
        if hasattr(interface, f"FA{version}_AVAILABLE"):
            setattr(interface, f"FA{version}_AVAILABLE", True)
    _WITH_CUDA.add("flashinfer")
    found = importlib.import_module("vllm.utils.flashinfer")
    for name in ("has_flashinfer", "has_nvidia_artifactory"):
        if hasattr(found, name):
            setattr(found, name, lambda: True)


def _without_gpu(make: Any) -> Any:
    return lambda *args, **options: make(*args, **{**options, "device": "meta"})


def _any_operator() -> None:
    """Give every compiled operator a name, because layers hold on to those that they will call."""
    import torch

    namespace = type(torch.ops._C)
    real = namespace.__getattr__

    def operator(self: Any, name: str) -> Any:
        try:
            return real(self, name)
        except AttributeError:
            if name.startswith("__"):
                raise
            return _Operator()

    namespace.__getattr__ = operator


_DRAFTS = {
    ("v2", "mtp"): "vllm.v1.worker.gpu.spec_decode.gemma4.speculator",
    ("v1", "mtp"): "vllm.v1.spec_decode.gemma4",
    ("v1", "draft_model"): "vllm.v1.spec_decode.draft_model",
    ("v1", "eagle3"): "vllm.v1.spec_decode.llm_base_proposer",
}
"""Runner and method → the module whose class makes the head's configuration (_create_draft_vllm_config)."""


def _draft(config: Any, drafting: Any, initialize_model: Any) -> None:
    """Build the head with the configuration that its own speculator makes; nothing where that is not known."""
    runner = "v2" if getattr(config, "use_v2_model_runner", False) else "v1"
    name = _DRAFTS.get((runner, drafting.method))
    if drafting.method == "eagle3" and runner == "v2":  # load_eagle_model in v1/worker/gpu/spec_decode/eagle/utils.py
        overlaid = getattr(drafting, "apply_draft_overrides", lambda one: one)(config)
        initialize_model(vllm_config=overlaid, model_config=drafting.draft_model_config, prefix="draft")
        return
    if name is None or importlib.util.find_spec(name) is None:
        return
    module = importlib.import_module(name)
    maker = next(
        one
        for one in vars(module).values()
        if isinstance(one, type) and one.__module__ == name and hasattr(one, "_create_draft_vllm_config")
    )
    speculator = object.__new__(maker)
    speculator.vllm_config, speculator.speculative_config = config, drafting
    initialize_model(
        vllm_config=speculator._create_draft_vllm_config(), model_config=drafting.draft_model_config, prefix="draft"
    )


def _one_process() -> None:
    import torch.distributed
    from vllm.distributed import parallel_state

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    parallel_state.init_distributed_environment(1, 0, "", 0, "gloo")
    parallel_state.initialize_model_parallel(1, 1, backend="gloo")


def _backends(config: Any) -> dict[str, tuple[str, int, bool]]:
    """Return layer → backend, head size, whether it has a window."""
    found = {}
    for name, layer in config.compilation_config.static_forward_context.items():
        if hasattr(layer, "head_size") and (backend := getattr(layer, "attn_backend", None)):
            found[name] = (backend.get_name(), layer.head_size, bool(getattr(layer, "sliding_window", None)))
    return found


def _kinds(found: dict[str, tuple[str, int, bool]]) -> dict[str, str]:
    return {f"{size}{' window' if window else ''}": backend for backend, size, window in found.values()}


def _engine_args() -> Any:
    return importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs


def _usage() -> Any:
    return importlib.import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER


def _resolved(config: Any) -> dict[str, Any]:
    found = {}
    for part, name in RESOLVED:
        value = getattr(getattr(config, part, None), name, None)
        found[name if part != "speculative_config" else f"speculative.{name}"] = (
            value if isinstance(value, int | float | str | bool | None) else str(value)
        )
    runner = getattr(config, "use_v2_model_runner", None)
    found["runner"] = None if runner is None else "v2" if runner else "v1"
    return found


def _found(question: dict[str, Any], argv: list[str], env: dict[str, str]) -> dict[str, Any]:
    if question.get("flags"):
        return flags()
    if "modes" in question:
        return modes(question["modes"], env)
    if question.get("refusals"):
        return refusals(argv)
    if "ranks" in question:
        return rank_bytes(argv, env, question["ranks"])
    return layers(argv, env) if question.get("layers") else judged(argv, env)


def answer(question: dict[str, Any], machine: str) -> dict[str, Any]:
    """Return one answer, computed in a child process. A question may name another GPU machine."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        found: dict[str, Any]
        facts.update({"nvml_memory": True} | MACHINES[question.get("machine", machine)])
        try:
            asked = (question.get("argv", []), question.get("env", {}))
            found = _found(question, *asked)
        except BaseException as error:
            traceback.print_exc()
            found = {"broken": f"{type(error).__name__}: {error}"}
        with os.fdopen(writer, "w") as out:
            json.dump(found, out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answered:
        text = answered.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"broken": "the process died"}


def main() -> None:
    """Answer questions until stdin ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM's log goes to stderr
    pretend(sys.argv[1])
    imported()
    for line in sys.stdin:
        question = json.loads(line)
        found = judged(question["argv"], {}) if question.get("warm") else answer(question, sys.argv[1])
        out.write(json.dumps(found) + "\n")
        out.flush()
    os._exit(0)  # nothing is left to be done, and taking all of vLLM down takes a while


if __name__ == "__main__":
    main()
