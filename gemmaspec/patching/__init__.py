"""Patch folders and diffs to a plan. Pure. Start at patch.py and plan.py; the decisions stand in launcher/launch.py."""
