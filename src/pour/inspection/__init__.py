"""Check a model, its data and its roles before any work, and describe it."""
