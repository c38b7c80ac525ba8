"""The project's errors, for faults in a user's input.  A bug propagates as the exception that it raised.

An infeasible plan is a *value* (`compiler.plan.plan.Infeasible`), not an exception, except at the rim: the command line raises
`InfeasibleError` when no plan is left.
"""


class TilefarmError(Exception):
    """One line: the fault, its place, and the accepted values."""

    exit_code = 2


class BadInputError(TilefarmError):
    """An invalid file, option or value."""


class ProgramError(BadInputError):
    """An instruction that is illegal on this machine; the message names it, the reason, and the legal alternatives."""


class DeadlockError(ProgramError):
    """A program that cannot run to its end; the message names the blocked queues and the flags that they wait for."""


class UnsupportedError(TilefarmError):
    """A valid model that uses a feature beyond this NPU or this compiler."""


class InfeasibleError(TilefarmError):
    """A valid and supported model that does not fit the machine."""

    exit_code = 3
