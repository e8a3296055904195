"""The known ways in which servers fail to start: the table of failures.py.

Bugs of vLLM that have a patch are described in their patch folders and read from there.
"""

from __future__ import annotations

from typing import Final

from gemmaspec.finding import Finding
from gemmaspec.patching.bugs import Bug, bugs
from gemmaspec.ready.known_kernels import KERNELS
from gemmaspec.ready.known_row import ENVIRONMENT, KnownFailure, row

_CPU: Final = (
    row(
        "cpu-speculation-0.20",  # v1/sample/rejection_sampler.py, 0.20.0-0.20.2
        r"unexpected keyword argument 'SYNTHETIC_MODE'",
        "vLLM 0.20 as released cannot speculate on a CPU.",
        "Set runtime.vllm to 0.21 or later, or let gemmaspec build the runtime, which includes the fix.",
    ),
    row(
        "cpu-speculation-0.19",  # v1/worker/cpu_model_runner.py, 0.19.0-0.19.1
        r"AssertionError: spec decode is not supported",
        "vLLM 0.19 cannot speculate on a CPU.",
        "Set runtime.vllm to 0.21 or later.",
    ),
)

_CONFIGURATION: Final = (
    row(
        "draft-tensor-parallel",  # v1/spec_decode/draft_model.py and config/speculative.py, 0.19.0-0.33.0
        r"'draft_tensor_parallel_size' and 'tensor_parallel_size' must be the same"
        r"|cannot be other value than 1 or target model tensor_parallel_size",
        "The draft must be split over as many GPUs as the target.",
        "Set speculative.draft_tensor_parallel_size to the value of serve.tensor_parallel_size.",
    ),
    row(
        "vocabulary-size",  # config/speculative.py, 0.19.0-0.33.0
        r"Target and draft model should have the same vocabulary size",
        "Target and draft have different vocabularies, so the target cannot use the draft's tokens.",
        "Set draft.model to a Gemma 4 model with the target's tokenizer.",
    ),
    row(
        "unknown-speculative-key",  # SpeculativeConfig forbids unknown keys, 0.19.0-0.33.0
        r"validation errors? for SpeculativeConfig: .{0,300}(?:unexpected_keyword_argument|extra_forbidden)",
        "This vLLM does not know one of the keys under speculative.",
        "Remove the key that the log names, or use a vLLM release that supports it.",
    ),
    row(
        "speculative-method",  # config/speculative.py, 0.19.0-0.33.0
        r"Unsupported speculative method: ",
        "This vLLM does not know the method under speculative.",
        "Change speculative.method, or use a vLLM release that supports it.",
    ),
    row(
        "speculative-config",
        r"validation errors? for SpeculativeConfig",
        "vLLM rejects a value under speculative.",
        "Correct the key under speculative that the log names.",
        general=True,
    ),
    row(
        "unknown-flag",  # argparse
        r"error: (?:unrecognized arguments|argument --[\w-]{1,80}: invalid)",
        "This vLLM does not know a flag or rejects its value.",
        "Remove or change the key under serve that the log names, or use a vLLM release that supports it.",
    ),
    row(
        "no-gemma4",  # model_executor/models/registry.py; Gemma 4 is there from 0.19.0
        r"Model architectures \[[^\]]{0,200}Gemma4[^\]]{0,200}\] (?:are not supported|failed to be)",
        "This vLLM cannot run this kind of Gemma 4.",
        "Use a newer vLLM: change image, or runtime.vllm for the process engine.",
    ),
)

_TRANSFORMERS: Final = (
    row(
        "transformers-too-new",  # vLLM up to 0.27.1 with transformers 5.15.0 and later
        r"AmbiguousGlobalPerLayerAttributeError: |KeyError: 'axial'",
        "The installed transformers is too new for this vLLM to read Gemma 4's configuration.",
        "Set an upper bound in runtime.packages.transformers: below 5.15 for vLLM up to 0.27.",
    ),
    row(
        "transformers-too-old",  # transformers, AutoConfig
        r"model type `gemma4\w{0,40}` but Transformers does not recognize|KeyError: 'gemma4\w{0,40}'",
        "The installed transformers does not know Gemma 4.",
        "Set runtime.packages.transformers to at least 5.5.0, or 5.8.0 for an assistant draft.",
    ),
)

_MEMORY: Final = (
    row(
        "shared-memory",  # shm_broadcast.py, 0.27.0-0.33.0; before, the operating system's own words
        r"Insufficient space in /dev/shm|No space left on device: '/dev/shm|shared memory segment /dev/shm",
        "vLLM's processes communicate through /dev/shm, which is too small here.",
        "Increase container.shm_size; 1gb is enough for one GPU.",
        exit_code=ENVIRONMENT,
    ),
    row(
        "memory-taken",  # v1/worker/utils.py, 0.19.0-0.33.0
        r"Free memory on device .{1,200} on startup is less than",
        "Another program uses the memory that serve.gpu_memory_utilization requests.",
        "Stop other programs on the GPU, or lower serve.gpu_memory_utilization.",
        exit_code=ENVIRONMENT,
    ),
    row(
        "no-kv-memory",  # v1/core/kv_cache_utils.py, in 0.33.0 kv_cache_planning.py
        r"No available memory for the cache blocks|not enough GPU memory available to serve even a single",
        "Target and draft fill the memory, so that nothing is left for the KV cache.",
        "Raise serve.gpu_memory_utilization, or use smaller checkpoints.",
        exit_code=ENVIRONMENT,
    ),
    row(
        "context-too-long",  # v1/core/kv_cache_utils.py, in 0.33.0 kv_cache_planning.py
        r"To serve at least one request with the models?'s max seq len",
        "One request of the maximum length does not fit into the KV cache.",
        "Lower serve.max_model_len to what the log estimates, or raise serve.gpu_memory_utilization.",
        exit_code=ENVIRONMENT,
    ),
    row(
        "gpu-out-of-memory",  # torch
        r"OutOfMemoryError: |CUDA out of memory|CUDA error: out of memory",
        "The GPU ran out of memory.",
        "Lower serve.gpu_memory_utilization, serve.max_num_seqs or serve.max_model_len, and stop other "
        "programs on the GPU.",
        exit_code=ENVIRONMENT,
    ),
    row(
        "worker-killed",  # v1/executor/multiproc_executor.py, 0.26.0-0.33.0
        r"Worker proc .{1,80} died unexpectedly \(exit code: -9\)",
        "A worker of vLLM was killed from outside, usually because the machine ran out of memory.",
        "Lower serve.gpu_memory_utilization or serve.max_model_len, or free memory on the machine.",
        exit_code=ENVIRONMENT,
        general=True,
    ),
)

_MACHINE: Final = (
    row(
        "port-in-use",  # the operating system
        r"\[Errno 98\]",
        "Another program uses the port.",
        "Stop it, or change serve.port.",
        exit_code=ENVIRONMENT,
    ),
    row(
        "driver-too-old",  # torch
        r"The NVIDIA driver on your system is too old|CUDA driver version is insufficient|"
        r"forward compatibility was attempted on non supported HW",
        "The NVIDIA driver is older than the CUDA that this vLLM was built for.",
        "Update the driver, or use an image built for an older CUDA.",
        exit_code=ENVIRONMENT,
    ),
    row(
        # torch; "Found no NVIDIA driver on your system" is not here: workers on a CPU say so when they stop
        "no-gpu",
        r"No CUDA GPUs are available|no CUDA-capable device is detected",
        "vLLM finds no GPU.",
        "Check nvidia-smi and, for docker, the NVIDIA Container Toolkit. Without a GPU, set machine: cpu.",
        exit_code=ENVIRONMENT,
    ),
    row(
        "no-device-type",  # config/device.py, 0.19.0-0.33.0
        r"Failed to infer device type",
        "This vLLM was built for a device that this machine does not have.",
        "Check nvidia-smi. On a machine without a GPU, the runtime needs the CPU build of vLLM.",
        exit_code=ENVIRONMENT,
    ),
    row(
        "no-kernel",  # the CUDA runtime; compute capability 12.1 is a DGX Spark
        r"no kernel image is available for execution on the device|Value 'sm_1\d\da?' is not defined",
        "This vLLM has no kernels for this GPU; a DGX Spark has compute capability 12.1.",
        "Use an image built for it: vllm/vllm-openai:cu130-nightly, or a release with CUDA 13.",
        exit_code=ENVIRONMENT,
    ),
    row(
        "no-compiler",  # torch's Inductor, Triton
        r"InvalidCxxCompiler|No working C\+\+ compiler found|Failed to find C compiler"
        r"|fatal error: Python\.h: No such file|No such file or directory: '(?:g\+\+|gcc|cc|c\+\+)'",
        "vLLM needs to compile but finds no working compiler.",
        "Install g++ and Python's headers, or set serve.enforce_eager and env.TORCH_COMPILE_DISABLE: 1.",
        exit_code=ENVIRONMENT,
    ),
    row(
        "disk-full",
        r"\[Errno 28\]",
        "A disk is full.",
        "Free space on the disk of the model and compile caches: the folders under caches.",
        exit_code=ENVIRONMENT,
    ),
    row(
        "read-only-root",
        r"\[Errno 30\]",
        "This image writes outside its caches, but the container's root is read-only.",
        "Set container.read_only: false.",
    ),
    row(
        "illegal-address",  # CUDA; seen with MTP and DFlash on two GPUs, and after hours with MTP (#41190, #42261)
        r"cudaErrorIllegalAddress|CUDA error: an illegal memory access|device-side assert triggered",
        "A CUDA kernel accessed invalid memory; the log does not show which kernel.",
        "Start again. If the failure returns, try --no-spec, then another attention backend, and report the log.",
    ),
)

_VALUES: Final = (
    row(
        "quantization-mismatch",  # config/model.py, 0.19.0-0.33.0
        r"Quantization method specified in the model config .{1,80} does not match",
        "The profile names another quantization than the checkpoint.",
        "Remove quantization under target or draft, because the checkpoint names its own.",
    ),
    row(
        "quantization-unknown",  # config/model.py, 0.19.0-0.33.0; bitsandbytes is gone since 0.28.0
        r"Unknown quantization method: ",
        "This vLLM does not load this quantization, or no longer.",
        "Run gemmaspec inspect PROFILE, which names the releases that know it; or use another checkpoint.",
    ),
    row(
        "longer-than-the-model",  # config/model.py, 0.19.0-0.33.0
        r"User-specified max_model_len .{1,60} is greater than the derived max_model_len",
        "The context asked for is longer than the model was made for.",
        "Lower serve.max_model_len to the derived length that the log names.",
    ),
    row(
        "more-gpus-than-there-are",  # config/parallel.py, 0.26.0-0.33.0
        r"World size \(\d{1,6}\) is larger than the number of available GPUs",
        "The server is split over more GPUs than this machine has.",
        "Lower serve.tensor_parallel_size, or serve from several machines with nodes.",
    ),
    row(
        "heads-not-divisible",  # config/model.py, 0.19.0-0.33.0
        r"Total number of attention heads .{1,40} must be divisible by tensor parallel size",
        "The attention heads of target or draft cannot be split over that many GPUs.",
        "Set serve.tensor_parallel_size to 1, 2, 4 or 8.",
    ),
    row(
        "no-experts",  # config/model.py, 0.19.0-0.33.0
        r"Number of experts in the model must be greater than 0|Non-MoE models do not support external data parallel",
        "A setting for mixtures of experts is on, but the model, or its draft, is dense.",
        "Remove what the log names from serve and its extra_args, or start with --no-spec if only the draft is dense.",
    ),
    row(
        "no-quantization-file",  # model_loader/weight_utils.py, 0.19.0-0.33.0
        r"Cannot find the config file for \S{1,40}",
        "The profile names a quantization, but the checkpoint is not quantized.",
        "Remove quantization under target or draft, or use the quantized checkpoint.",
    ),
    row(
        "head-of-another-size",  # torch; a head reads the target's hidden states
        r"mat1 and mat2 shapes cannot be multiplied",
        "Two matrices do not fit: most often the draft is a head for another size of Gemma 4.",
        "Run gemmaspec inspect PROFILE, which compares target and head; set draft.model to the target's own head.",
        general=True,
    ),
    row(
        "stages-that-differ",  # v1/core/kv_cache_utils.py and kv_cache_planning.py, 0.19.0-0.33.0
        r"KV cache specs for the same layer are different across workers|Specified KV sharing target layer",
        "The draft's layers cannot be divided among pipeline stages.",
        "Set serve.pipeline_parallel_size: 1 and split with serve.tensor_parallel_size.",
    ),
    row(
        "runner-v1-method",  # config/vllm.py, 0.30.0-0.33.0
        r"Model Runner V1 does not support: ",
        "Model runner v1, which this server takes, does not have the feature that the log names.",
        "Remove what makes vLLM take v1 (gemmaspec profile lint names it), or choose another speculative.method.",
    ),
    row(
        "no-arctic-inference",  # config/speculative.py, 0.19.0-0.33.0
        r"Arctic Inference is required for suffix decoding",
        "The method suffix needs the package arctic-inference.",
        "Set runtime.packages.arctic-inference to the version that the log names, or use method: ngram.",
    ),
    row(
        "unknown-parser",  # entrypoints: validate_api_server_args, 0.19.0-0.33.0
        r"invalid (?:tool call|reasoning) parser: ",
        "This vLLM has no parser of that name.",
        "Set chat.tool_call_parser and chat.reasoning_parser to gemma4.",
    ),
    row(
        "batch-below-one-item",  # v1/core/encoder_cache_manager.py, 0.19.0-0.33.0; vllm-project/recipes#441
        r"Chunked MM input disabled but max_tokens_per_mm_item",
        "One image needs more tokens than a step may have.",
        "Raise serve.max_num_batched_tokens to the first number in the log, or set serve.language_model_only: true.",
    ),
    row(
        "batch-below-drafts",  # config/vllm.py and engine/arg_utils.py, 0.26.0-0.33.0
        r"max_num_scheduled_tokens is set to .{1,60} which does not allow any|ValueError: Consider increasing "
        r"max_num_batched_tokens",
        "A step has no room for the drafted tokens of all requests.",
        "Raise serve.max_num_batched_tokens, or lower serve.max_num_seqs or speculative.num_speculative_tokens.",
    ),
    row(
        "float16",  # config/model.py, 0.19.0-0.33.0
        r"model type '\w{1,60}' does not support float16",
        "Gemma 4 overflows in float16.",
        "Set serve.dtype: bfloat16; a GPU without it (before Ampere) needs float32.",
    ),
)

_WEIGHTS: Final = (
    row(
        "weights-not-in-checkpoint",  # model_loader/default_loader.py, 0.19.0-0.33.0; vllm-project/vllm#44788
        r"[Ww]eights were not initialized from checkpoint",
        "The checkpoint lacks weights that its config.json calls for.",
        "Run gemmaspec inspect PROFILE, which names what is missing; fetch the checkpoint again with gemmaspec pull.",
    ),
    row(
        "weights-of-another-shape",  # model_executor/layers/linear.py, 0.19.0-0.33.0; vllm-project/vllm#41745
        r"Tried to load weights of size|Attempted to load weight .{1,120} into parameter",
        "A weight of the checkpoint has another shape than its config.json says.",
        "Run gemmaspec inspect PROFILE. Take config.json and weights from the same export.",
    ),
    row(
        "damaged-safetensors",  # the safetensors package
        r"SafetensorError: .{0,40}(?:header|Metadata|incomplete)|MetadataIncompleteBuffer|HeaderTooLarge",
        "A weight file is damaged or was not fetched whole.",
        "Delete the file that the log names, then run gemmaspec pull PROFILE; in a Git checkout, run git lfs pull.",
        exit_code=ENVIRONMENT,
    ),
)

# General: while vLLM looks for optional files, the same words may stand in the log of a start that goes on.
_MODELS: Final = (
    row(
        "gated-model",  # huggingface_hub, transformers
        r"GatedRepoError|trying to access a gated repo|Access to model .{1,200} is restricted"
        r"|40[13] Client Error",
        "Hugging Face denies access to this model.",
        "Accept its terms on its page, set HF_TOKEN and list it in pass_env.",
        exit_code=ENVIRONMENT,
        general=True,
    ),
    row(
        "hub-says-wait",  # the Hub's answer 429
        r"429 Client Error|Too Many Requests for url",
        "Hugging Face limits how often this address may ask.",
        "Wait some minutes. Set HF_TOKEN and list it in pass_env; after gemmaspec pull PROFILE no start asks again.",
        exit_code=ENVIRONMENT,
        general=True,
    ),
    row(
        "no-such-model",  # huggingface_hub
        r"RepositoryNotFoundError|RevisionNotFoundError|Repository Not Found for url",
        "Hugging Face has no such model or revision, or it is private.",
        "Correct target.model or draft.model; for a private model set HF_TOKEN and list it in pass_env.",
        exit_code=ENVIRONMENT,
        general=True,
    ),
    row(
        "model-not-cached",  # huggingface_hub, transformers
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|offline mode is enabled|couldn't connect to '?https://"
        r"|outgoing traffic has been disabled",
        "The model is not in the cache, and Hugging Face cannot be reached.",
        "Download it while online (gemmaspec pull PROFILE), or remove HF_HUB_OFFLINE from env.",
        exit_code=ENVIRONMENT,
        general=True,
    ),
    row(
        "not-a-model",  # transformers; transformers_utils/config.py
        r"is not a local folder and is not a valid model identifier|Invalid repository ID or local directory",
        "Neither this machine nor Hugging Face has a model with this name.",
        "Correct target.model or draft.model.",
        exit_code=ENVIRONMENT,
        general=True,
    ),
)

KNOWN: Final = (*_CPU, *_CONFIGURATION, *_VALUES, *_TRANSFORMERS, *_WEIGHTS, *_MEMORY, *_MACHINE, *KERNELS, *_MODELS)
"""Every failure that the log identifies, except bugs that have a patch."""

KILLED: Final = row(
    "killed",
    r"(?!)",  # a killed process says nothing
    "It was killed from outside (SIGKILL), usually because the machine ran out of memory.",
    "Lower serve.gpu_memory_utilization or serve.max_model_len, or free memory on the machine.",
)


def _of_bug(bug: Bug, fix: str) -> Finding:
    return Finding(code=bug.patch, severity="error", message=bug.symptom, fix=fix, patches=(bug.patch,))


def known_failures(version: str | None = None) -> tuple[KnownFailure, ...]:
    """Return the bugs of vLLM that have a patch, then KNOWN.

    `version` is the vLLM that ran, if known: a bug counts only with advice for that release.
    """
    rows = (
        KnownFailure(pattern=bug.pattern(), finding=_of_bug(bug, fix))
        for bug in bugs()
        if bug.errors and (fix := bug.fix(version))
    )
    return (*rows, *KNOWN)
