"""Networks by name: our own, and those of other libraries."""
