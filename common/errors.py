"""Errors that a user can cause and mend. The command line prints their text on one line and exits."""


class UserError(Exception):
    """A wrong file, record, set or environment. The text names it and says the remedy. Exit code 1."""

    exit_code = 1


class UsageError(UserError):
    """A wrong flag or configuration value. The text names the flag and the value. Exit code 2."""

    exit_code = 2
