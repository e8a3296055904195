"""YAML to a checked profile. Pure but for reading files. Start at model.py and load.py."""
