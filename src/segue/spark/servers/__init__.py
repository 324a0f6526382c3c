"""Stores on servers: read and written over the network, by ranges of offsets."""
