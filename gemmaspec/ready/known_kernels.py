"""Failures in the compiled half: attention backends, kernels compiled at start, libraries, and NCCL."""

from __future__ import annotations

from typing import Final

from gemmaspec.ready.known_row import ENVIRONMENT, row

KERNELS: Final = (
    row(
        "no-attention-backend",  # platforms/cuda.py, 0.19.0-0.33.0; vllm-project/vllm#40382
        r"No valid attention backend found for",
        "No attention backend of this vLLM takes this GPU, head size, KV format and block size together.",
        "Read the reason for each backend in the log. Set serve.kv_cache_dtype: auto and remove serve.block_size.",
    ),
    row(
        "attention-backend-refused",  # platforms/cuda.py, 0.19.0-0.33.0; vllm-project/vllm#40677
        r"Selected backend \S{1,80} is not valid for this configuration",
        "The attention backend that the profile sets cannot run this model on this GPU.",
        "Remove serve.attention_backend or speculative.attention_backend, so that vLLM chooses.",
    ),
    row(
        "no-nvcc",  # flashinfer, deep_gemm and torch.utils.cpp_extension; vllm-project/vllm#21960
        r"Could not find nvcc|nvcc: (?:command )?not found|No such file or directory: '[^']{0,200}nvcc'"
        r"|CUDA_HOME environment variable is not set",
        "A kernel must be compiled at start, and CUDA's compiler is not there.",
        "Use the official image, which has it, or install the CUDA toolkit and set env.CUDA_HOME.",
        exit_code=ENVIRONMENT,
    ),
    row(
        "kernel-not-compiled",  # flashinfer/jit and torch.utils.cpp_extension; vllm-project/vllm#36077
        r"Ninja build failed|Error building extension '|ninja: build stopped",
        "A kernel that FlashInfer compiles at start does not compile here.",
        "Set serve.attention_backend: TRITON_ATTN and env.VLLM_USE_FLASHINFER_SAMPLER: 0, which need no compiler.",
    ),
    row(
        "no-ninja",  # torch.utils.cpp_extension; flashinfer/jit
        r"Ninja is required to load C\+\+ extensions|No such file or directory: 'ninja'",
        "A kernel must be compiled at start, and ninja is not there.",
        "Set runtime.packages.ninja, or use the official image.",
        exit_code=ENVIRONMENT,
    ),
    row(
        "ptxas",  # triton/backends/nvidia; vllm-project/vllm#41477
        r"PTXASError|ptxas fatal|Internal Triton PTX codegen error",
        "Triton's assembler (ptxas) does not know this GPU or refuses a kernel.",
        "Use an image with CUDA 13. Or set env.TRITON_PTXAS_PATH to the ptxas of an installed CUDA 13.",
    ),
    row(
        "kernel-too-large",  # triton; 64 KiB on Turing, 99 KiB on SM 8.6, 8.9 and 12.x; vllm-project/vllm#57712
        r"out of resource: shared memory",
        "A Triton kernel needs more shared memory than a multiprocessor of this GPU has.",
        "Set serve.kv_cache_dtype: auto. On a GPU before Ampere, heads of 512, which Gemma 4 has, do not fit.",
    ),
    row(
        "fp4-gemm",  # csrc/quantization/fp4; vllm-project/vllm#30163, #24377
        r"Failed to (?:run|initialize) cutlass FP4 gemm|Failed to initialize cutlass TMA WS grouped gemm",
        "The CUTLASS kernel for NVFP4 fails on this GPU.",
        "Set serve.linear_backend: marlin, before 0.22 env.VLLM_NVFP4_GEMM_BACKEND: marlin; or use a newer image.",
    ),
    row(
        "nccl",  # NCCL, through torch.distributed or vLLM's own binding; vllm-project/vllm#39774
        r"NCCL error[^\n]{0,300}unhandled (?:system|cuda) error|ncclSystemError|ncclUnhandledCudaError"
        r"|NCCL error: (?:unhandled|invalid|internal|remote)",
        "The GPUs or machines cannot talk to each other through NCCL.",
        "Set env.NCCL_DEBUG: WARN to see why; for machines run gemmaspec doctor --fleet, for GPUs raise "
        "container.shm_size.",
        exit_code=ENVIRONMENT,
    ),
    row(
        "nvml",  # torch: c10/cuda/CUDACachingAllocator.cpp; vllm-project/vllm#9824
        r"NVML_SUCCESS == r INTERNAL ASSERT FAILED",
        "The GPU ran out of memory, and the driver could not say how much is left.",
        "Lower serve.gpu_memory_utilization, and stop other programs on the GPU. In a container, start it again.",
        exit_code=ENVIRONMENT,
    ),
    row(
        "other-torch",  # the dynamic linker, for vllm/_C and its like
        r"ImportError: .{1,300}undefined symbol: _ZN",
        "vLLM was built for another torch than the installed one.",
        "Remove torch from runtime.packages, or use the official image.",
    ),
    row(
        "cuda-library",  # the dynamic linker
        r"lib(?:cudart|cublas|cublasLt|nvrtc|cusparse|cudnn)\.so\.\d{1,3}: cannot open shared object file",
        "A library of the CUDA that this vLLM was built for is not installed.",
        "Use the official image, or a wheel of vLLM for the CUDA that is installed.",
        exit_code=ENVIRONMENT,
    ),
)
"""Kernels and libraries, as torch, Triton, FlashInfer, CUTLASS and NCCL word their errors."""
