"""Facts about vLLM releases, each with its source. Pure. Start at facts.py; the tables are in data/."""
