"""What looks at servers: status, top, watch, smoke, connect."""
