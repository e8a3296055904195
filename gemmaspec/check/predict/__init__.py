"""Tokens per second before they are measured: acceptance curves over step times. Pure."""
