"""Benchmarks of the server: a compiled client, and the application that is the ceiling."""
