"""Shapes of published checkpoints, which ship with gemmaspec."""
