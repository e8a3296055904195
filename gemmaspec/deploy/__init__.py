"""Use cases of serving, one module per command; helpers that several share stand beside them. Start at up.py."""
