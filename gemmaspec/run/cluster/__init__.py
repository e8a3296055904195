"""A profile and its stack to Kubernetes objects, as text. Pure. Start at build.py."""
