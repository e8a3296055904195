"""A profile against the vLLM that will run it. Pure. Start at check.py; each rule is a function marked `@rule`."""
