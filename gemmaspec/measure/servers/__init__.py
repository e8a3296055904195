"""Servers started to be measured: bench and tune."""
