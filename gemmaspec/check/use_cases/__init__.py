"""Answers about a profile without a server: lint, fit, inspect, predict."""
