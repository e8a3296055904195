"""Will it fit, and how fast can it be? vLLM's own arithmetic of memory, from a checkpoint's shape and a few flags. Pure."""
