"""Parts that several unlearning methods share."""
