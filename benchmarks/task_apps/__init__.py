"""The same few tasks written for each task queue: what its worker imports, and its producer."""
