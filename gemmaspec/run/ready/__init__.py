"""From a started process to a server that has answered: phases, failures, the first request. Start at wait.py."""
