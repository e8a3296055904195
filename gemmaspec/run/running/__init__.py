"""Servers that somebody else started: what a container or a process of this machine was given. Reads only."""
