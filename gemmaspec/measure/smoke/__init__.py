"""Checks of a running server's answers: what each asks, and how it judges what came back. Pure."""
