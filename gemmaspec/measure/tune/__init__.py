"""Which servers `tune` tries, when it stops, and what it chooses. Pure."""
