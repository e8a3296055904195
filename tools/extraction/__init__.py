"""What a release of vLLM knows, read from its files without importing it; `make facts` writes it to the table."""
