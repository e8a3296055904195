"""What is pinned and what moved. Pure. Start at model.py."""
