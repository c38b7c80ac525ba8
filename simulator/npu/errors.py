"""The project's errors.  A bug propagates as whatever it is; these are for what a user handed us.

An infeasible plan is a *value* (`compiler.plan.plan.Infeasible`), not an exception, everywhere but at
the rim: the command line turns it into `InfeasibleError` when there is nothing else left to do.
"""


class TilefarmError(Exception):
    """One line: what is wrong, where, and what would be accepted."""

    exit_code = 2


class BadInputError(TilefarmError):
    """A file, an option or a value that cannot be right."""


class ProgramError(BadInputError):
    """An instruction that this machine cannot take: which one, why, and what would be legal."""


class DeadlockError(ProgramError):
    """A program that cannot run to its end: which queues stand, and what each of them waits for."""


class UnsupportedError(TilefarmError):
    """A model that is right, but that uses what this NPU or this compiler does not do."""


class InfeasibleError(TilefarmError):
    """Right and supported, but it does not fit the machine."""

    exit_code = 3
