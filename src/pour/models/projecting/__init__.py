"""Put a projector in front of a head, and merge it into the head."""
