"""The exception for a meaning without a text in a locale of the embedded corpus."""


class Missing(LookupError):
    """A locale has no text, or no correct text, for a meaning. It never reaches the caller: the meaning is left out."""
