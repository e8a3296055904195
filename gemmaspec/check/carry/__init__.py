"""Use cases of patches: verify, apply, rebase, import."""
