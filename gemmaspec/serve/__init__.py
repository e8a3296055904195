"""From a profile to a server that has answered: observe, decide, act. Start at up.py."""
