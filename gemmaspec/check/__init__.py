"""What answers without a server: lint, fit, inspect, predict, and everything about patches."""
