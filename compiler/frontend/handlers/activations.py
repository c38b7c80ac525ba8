"""Activation functions as steps of an element-wise chain, from the attributes of the ONNX node.

In float16 every step is rounded, and exp(x) overflows above 11.09.  A formula either has the right limit there (1 / inf is 0) or clips
first.  Near 0, where tanh, elu and softplus are differences or sums with 1, their error is that of 1: half a unit in its last place.
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.frontend.onnx_io.attributes import Attributes
from compiler.ir.operators import Step

Steps = tuple[Step, ...]
EXP_LIMIT = 11.0  # exp of it is below 65504, the largest float16

# registers: x in 0, other reused values in 1 and 2
X, Y, Z = 0, 1, 2
KEEP_X, KEEP_Y, TAKE_X = Step("keep", register=X), Step("keep", register=Y), Step("take", register=X)


def _number(values: Attributes, name: str, default: float) -> float:
    return float(values.get(name, default))


def _magnitude(values: Attributes) -> Steps:
    return (KEEP_X, Step("muls", -1.0), Step("max", register=X))


def _sigmoid(values: Attributes) -> Steps:
    return (Step("muls", -1.0), Step("exp"), Step("adds", 1.0), Step("reciprocal"))


def _swish(values: Attributes) -> Steps:
    """x * sigmoid(alpha * x) = x / (1 + exp(-alpha * x))"""
    return (Step("muls", -_number(values, "alpha", 1.0)), Step("exp"), Step("adds", 1.0), Step("rdiv", operand=0))


def _tanh(values: Attributes) -> Steps:
    """(1 - e) / (1 + e) with e = exp(-2x): half the error of 2 / (1 + e) - 1 around 0."""
    return (
        Step("muls", -2.0), Step("mins", EXP_LIMIT), Step("exp"), KEEP_Y, Step("adds", 1.0), Step("keep", register=Z),
        Step("take", register=Y), Step("muls", -1.0), Step("adds", 1.0), Step("div", register=Z),
    )  # fmt: skip


def _hard_sigmoid(values: Attributes) -> Steps:
    """min(max(alpha * x + beta, 0), 1)"""
    alpha, beta = _number(values, "alpha", 0.2), _number(values, "beta", 0.5)
    return (Step("muls", alpha), Step("adds", beta), Step("relu"), Step("mins", 1.0))


def _hard_swish(values: Attributes) -> Steps:
    return (KEEP_X, *_hard_sigmoid({"alpha": 1 / 6, "beta": 0.5}), Step("mul", register=X))


def _leaky_relu(values: Attributes) -> Steps:
    alpha = _number(values, "alpha", 0.01)
    return (KEEP_X, Step("muls", alpha), Step("max" if alpha <= 1 else "min", register=X))


def _below_zero(inner: float, outer: float) -> Steps:
    """max(x, 0) + outer * (exp(min(x, 0) * inner) - 1)"""
    low = (KEEP_X, Step("mins", 0.0), Step("muls", inner), Step("exp"), Step("adds", -1.0), Step("muls", outer))
    return (*low, KEEP_Y, TAKE_X, Step("relu"), Step("add", register=Y))


def _elu(values: Attributes) -> Steps:
    return _below_zero(1.0, _number(values, "alpha", 1.0))


def _celu(values: Attributes) -> Steps:
    alpha = _number(values, "alpha", 1.0)
    return _below_zero(1 / alpha, alpha)


def _selu(values: Attributes) -> Steps:
    alpha, gamma = _number(values, "alpha", 1.67326319217681884765625), _number(values, "gamma", 1.05070102214813232421875)
    return (*_below_zero(1.0, alpha), Step("muls", gamma))


def _softplus(values: Attributes) -> Steps:
    """max(x, 0) + ln(1 + exp(-|x|))"""
    logarithm = (KEEP_X, Step("muls", -1.0), Step("min", register=X), Step("exp"), Step("adds", 1.0), Step("ln"))
    return (*logarithm, KEEP_Y, TAKE_X, Step("relu"), Step("add", register=Y))


def _softsign(values: Attributes) -> Steps:
    """x / (1 + |x|)"""
    return (*_magnitude({}), Step("adds", 1.0), Step("rdiv", register=X))


def _mish(values: Attributes) -> Steps:
    """x * tanh(softplus(x)) = x * n / (n + 2) with n = e * (e + 2), e = exp(x); n of 5.4 fits float16, and n / (n + 2) is 1 there."""
    n = (KEEP_X, Step("mins", 5.4), Step("exp"), KEEP_Y, Step("adds", 2.0), Step("mul", register=Y))
    return (*n, KEEP_Y, Step("adds", 2.0), Step("rdiv", register=Y), Step("mul", register=X))


_LARGEST_POWER = 16  # largest exponent that is computed by squaring and multiplying


def power(exponent: float) -> Steps:
    """Steps of x ** exponent: integers up to 16 by squaring, others by exp(exponent * ln x), which is NaN for negative x as required."""
    magnitude = round(abs(exponent))
    if exponent == 0:
        return (Step("muls", 0.0), Step("adds", 1.0))
    if abs(exponent) == 0.5:
        return (Step("sqrt"),) if exponent > 0 else (Step("sqrt"), Step("reciprocal"))
    if magnitude != abs(exponent) or magnitude > _LARGEST_POWER:
        return (Step("ln"), Step("muls", exponent), Step("exp"))
    steps = [] if magnitude == 2 ** (magnitude.bit_length() - 1) else [KEEP_X]
    for digit in f"{magnitude:b}"[1:]:  # binary digits from the highest on: square, and multiply by x for a 1
        steps.append(Step("square"))
        if digit == "1":
            steps.append(Step("mul", register=X))
    return (*steps, Step("reciprocal")) if exponent < 0 else tuple(steps)


ACTIVATIONS: dict[str, Callable[[Attributes], Steps]] = {
    "Abs": _magnitude,
    "Celu": _celu,
    "Elu": _elu,
    "Exp": lambda values: (Step("exp"),),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "LeakyRelu": _leaky_relu,
    "Log": lambda values: (Step("ln"),),
    "Mish": _mish,
    "Neg": lambda values: (Step("muls", -1.0),),
    "Reciprocal": lambda values: (Step("reciprocal"),),
    "Relu": lambda values: (Step("relu"),),
    "Selu": _selu,
    "Sigmoid": _sigmoid,
    "Softplus": _softplus,
    "Softsign": _softsign,
    "Sqrt": lambda values: (Step("sqrt"),),
    "Swish": _swish,
    "Tanh": _tanh,
}
