"""Export a model for code without pour, and check the written files in a process without pour."""
