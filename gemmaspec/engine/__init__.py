"""Docker and process: start, stop, state, logs. Touches the world. Start at server.py, the protocol of both."""
