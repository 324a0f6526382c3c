"""A package, unlike other directories of tests: so a fixture can last as long as its tests."""
