"""What an `up` of replicas does next: one replica at a time, so that the others go on serving."""
