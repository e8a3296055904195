"""`watch` as a container next to the server: copied into stacks, with the rules of live/. Start at watcher.py."""
