# SPDX-License-Identifier: MIT
"""Ways to fail, each with its exit code. The codes are those of tools/run-guest, and 1 and 65."""

EXIT_FLAGGED = 1  # a comparison found a difference
EXIT_USAGE = 64
EXIT_DATA = 65  # a file is broken, or two files cannot be compared
EXIT_MISSING = 69
EXIT_MACHINE = 70


class Failure(Exception):
    """Ends the program, or a section, with a message for its user."""

    code = EXIT_MACHINE


class UsageError(Failure):
    code = EXIT_USAGE


class DataError(Failure):
    code = EXIT_DATA


class Missing(Failure):
    code = EXIT_MISSING


class Interrupted(BaseException):
    """A signal that asks us to end. Not an Exception: nobody takes it for the failure of a section."""

    def __init__(self, signal):
        super().__init__(signal)
        self.code = 128 + signal
