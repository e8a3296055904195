"""What is known and decided: profiles, releases, checkpoints, patches. Its own modules are what all share."""
