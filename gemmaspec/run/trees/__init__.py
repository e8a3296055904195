"""Read the files of a vllm/ package: in a folder, a wheel or an image. Touches the world. Start at tree.py."""
