"""Networks that score images against texts."""
