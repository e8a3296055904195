"""Readings of a machine to rows of `gemmaspec doctor`. Pure. Start at row.py."""
