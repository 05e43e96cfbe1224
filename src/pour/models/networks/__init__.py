"""Networks by name: networks of pour, of other libraries and of the user."""
