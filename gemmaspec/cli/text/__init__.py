"""What commands print for a person: pure text, no decisions. One module per subject."""
