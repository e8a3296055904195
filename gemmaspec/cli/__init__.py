"""Commands: parse, call one use case, print. One module per command; `text/` is the printing half. Start at app.py."""
