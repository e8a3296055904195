"""What vLLM will do with a profile: one value, which everything that asks reads. Pure."""
