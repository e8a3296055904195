"""Managed Python environments with one pinned vLLM each, in the state folder."""

from gemmaspec.runtime.managed import ManagedRuntime, describe, ensure_runtime, remove_runtime, runtime_dir
from gemmaspec.runtime.spec import RuntimeSpec
