"""fleet.yaml to hosts, and what hosts of one server must agree on. Start at hosts.py."""
