"""Shapes of published checkpoints that ship with gemmaspec."""
