"""The tiny checkpoints. make.py runs in the Python environment that has torch and imports nothing else of gemmaspec."""
