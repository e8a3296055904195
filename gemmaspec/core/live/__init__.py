"""Counters of a running server over time: samples, windows, quantiles, dashboards. Pure. Start at sample.py."""
