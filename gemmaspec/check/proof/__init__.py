"""Show that a patch works: its probe finds the bug in a released vLLM, but not in the patched one."""
