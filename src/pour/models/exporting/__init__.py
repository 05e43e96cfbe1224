"""Export a model for code without pour, and check what was written in a process without pour."""
