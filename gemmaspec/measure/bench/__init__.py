"""What is measured, in which order, and what the samples amount to. Pure."""
