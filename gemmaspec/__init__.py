"""gemmaspec: from a profile to a Gemma 4 server that has drafted, verified and answered."""

__version__ = "0.3.0"
