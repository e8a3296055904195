"""This machine: its memory, GPUs, clock and limits. Reads only; the one room that runs nvidia-smi."""
