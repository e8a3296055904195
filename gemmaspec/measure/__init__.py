"""What measures: a load on a server, and what its samples amount to."""
