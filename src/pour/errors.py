"""The errors that pour raises on purpose: one sentence that says what was wrong and what to do."""

__all__ = ["DivergenceError", "PourError", "UsageError"]


class PourError(Exception):
    """Work that failed. The command line prints its sentence and exits with 1."""


class UsageError(PourError, ValueError):
    """Wrong use: bad input, an impossible request, an unreadable file. The command line exits with 2."""


class DivergenceError(PourError):
    """An optimisation whose loss became NaN or exploded; the sentence names the step and the learning rate."""
