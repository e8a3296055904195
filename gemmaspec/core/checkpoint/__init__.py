"""Facts from checkpoint files: config.json, tokenizer and safetensors headers.

Pure; input is hostile. Start at model.py.
"""
