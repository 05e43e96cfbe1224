"""The paper's experiments as data, and the demo."""
