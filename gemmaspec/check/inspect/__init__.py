"""What two checkpoints say of themselves and of their pairing. Pure. Start at pair.py and examine.py."""
