"""Checkpoints where they are: folders, the Hugging Face cache, the Hub."""
