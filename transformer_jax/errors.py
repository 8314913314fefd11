"""Errors that a user can fix.

The command line prints their message without a traceback and exits with code 2. Any other error is a defect of this
package and keeps its traceback.
"""


class UserError(Exception):
    """Base of the errors whose message tells the user what to change."""


class ConfigError(UserError):
    """A config field, flag or file that cannot be used."""


class DataError(UserError):
    """A corpus, tokenizer or input line that cannot be used."""


class CheckpointError(UserError):
    """A checkpoint or work directory that cannot be used."""


class TrainingError(UserError):
    """A training run that cannot continue, for example because the loss is not finite."""
