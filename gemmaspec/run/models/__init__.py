"""Checkpoints in local folders, in the Hugging Face cache and on the Hub."""
