"""What is written down on this machine: stacks, groups, claims, locks, models, measurements."""
