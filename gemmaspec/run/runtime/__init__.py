"""Managed Python environments with one pinned vLLM each, in the state folder."""

from gemmaspec.run.runtime.managed import ManagedRuntime, describe, ensure_runtime, runtime_dir
from gemmaspec.run.runtime.spec import RuntimeSpec
