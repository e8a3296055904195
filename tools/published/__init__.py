"""Shapes of published checkpoints, derived from their configuration and quantization; record.py writes them down."""
