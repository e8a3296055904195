"""Where the files of a vllm/ package can be read: folder, wheel, image. Touches the world. Start at tree.py."""
