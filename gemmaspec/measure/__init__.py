"""Measuring a server over HTTP, and reading its machine meanwhile. Touches the world."""
