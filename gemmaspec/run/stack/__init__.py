"""From a profile and its plan to the files of a stack. Start at build.py."""
