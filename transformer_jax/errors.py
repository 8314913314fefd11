"""Errors that a user can fix.

The command line prints their message without a traceback and exits with code 2; anything else is a defect of ours
and keeps its traceback.
"""


class UserError(Exception):
    """Base of the errors whose message alone tells the user what to change."""


class ConfigError(UserError):
    """A config field, flag or file that cannot be used."""


class DataError(UserError):
    """A corpus, tokenizer or input line that cannot be used."""


class CheckpointError(UserError):
    """A checkpoint or work directory that cannot be used."""


class TrainingError(UserError):
    """A training run that cannot go on, such as a loss that is no longer finite."""
