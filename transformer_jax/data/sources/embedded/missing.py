"""The one signal inside the embedded corpus that a locale cannot say something."""


class Missing(LookupError):
    """A locale has no text, or no correct text, for a meaning. Never reaches the caller: the meaning is left out."""
