"""The exception for a meaning that a locale of the embedded corpus has no text for."""


class Missing(LookupError):
    """A locale has no text, or no correct text, for a meaning. Never reaches the caller: the meaning is left out."""
