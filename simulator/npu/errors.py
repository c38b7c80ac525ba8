"""The project's errors.  A bug propagates as whatever it is; these are for what a user handed us.

An infeasible plan is a *value* (`compiler.plan.plan.Infeasible`), not an exception, everywhere but at
the rim: the command line turns it into `InfeasibleError` when there is nothing else left to do.
"""


class TilefarmError(Exception):
    """One line: what is wrong, where, and what would be accepted."""

    exit_code = 2


class BadInputError(TilefarmError):
    """A file, an option or a value that cannot be right."""


class UnsupportedError(TilefarmError):
    """A model that is right, but that uses what this NPU or this compiler does not do."""


class InfeasibleError(TilefarmError):
    """Right and supported, but it does not fit the machine."""

    exit_code = 3
