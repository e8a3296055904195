"""What looks at servers and this machine: status, top, watch, smoke, doctor."""
