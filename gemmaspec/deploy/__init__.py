"""Use cases of serving, one module per command; shared helpers next to them. Start at start/up.py."""
