"""Will it fit, and how fast can it be? vLLM's own arithmetic of memory, from shapes and flags alone. Pure."""
