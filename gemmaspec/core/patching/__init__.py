"""From patch folders and diffs to a plan. Pure. Start at patch.py; launcher/launch.py makes the decisions."""
