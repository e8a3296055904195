"""Showing that a patch does what it says: its probe finds the hole in a released vLLM, and not in the patched one."""
