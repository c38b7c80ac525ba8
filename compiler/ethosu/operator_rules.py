"""Rules of operators: what steps each is, with the arithmetic of TFLite's reference kernels.

Sources: TFLite's reference kernels (`reference_ops.h`, `reference/integer_ops`, Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from compiler.ethosu import convolution_rules, elementwise_rules, movement_rules, pooling_rules, table_rules
from compiler.ethosu.lowering import Rule

RULES: Mapping[str, Rule] = MappingProxyType(
    {**convolution_rules.RULES, **pooling_rules.RULES, **elementwise_rules.RULES, **table_rules.RULES, **movement_rules.RULES}
)
