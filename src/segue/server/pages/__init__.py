"""Pages for people: static files, which load nothing from elsewhere and have no inline code."""
