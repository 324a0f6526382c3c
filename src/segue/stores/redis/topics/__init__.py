"""Topics on a server."""
