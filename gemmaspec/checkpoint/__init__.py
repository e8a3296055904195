"""Checkpoint files to facts: config.json, tokenizer and safetensors headers. Pure, hostile input. Start at model.py."""
