"""From YAML to a checked profile. Pure, except that it reads files. Start at model.py and load.py."""
