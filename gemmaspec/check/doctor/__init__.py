"""Readings of a machine to the check results of `gemmaspec doctor`. Pure. Start at result.py."""
