"""The engines docker and process: start, stop, state, logs. Touches the world. Start at server.py, their protocol."""
