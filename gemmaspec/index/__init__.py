"""Files from the network: released wheels through pip settings, single addresses, and the cache they are kept in."""
