"""Files from the network: released wheels through pip's settings, single addresses, and their cache."""
