"""Quantised ONNX models on the NPU, whole: what onnxruntime gives, to the bit, where nothing between is computed in floats."""

from __future__ import annotations

import numpy as np

from compiler.build import default_plan
from compiler.frontend import load_model
from compiler.frontend.lower import lower
from compiler.ops.lower_graph import pack_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from simulator.npu.errors import UnsupportedError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiled import Case, check_program, run_program
from tests.compiler.frontend.handlers.test_quantised import HOW, is_whole, onnxruntime_of, quantised_model
from tests.integers import with_integers
from tests.models import random_model
from tests.plans import random_plan

EDGE = with_integers(load_machine("edge"))


def test_random_models_are_those_of_onnxruntime() -> None:
    """QDQ and QOperator, int8 and uint8, per tensor and per channel; layer by layer, and in any plan that fits."""
    whole, any_plan, refused = 0, 0, list[str]()
    for seed in range(24):
        model, feeds = quantised_model(load_model(random_model(seed)), HOW[seed % len(HOW)], seed)
        graph = lower(model)
        if not is_whole(graph):
            continue
        try:
            target_graph, constants = pack_unit(graph, EDGE, DataType.float32)
        except UnsupportedError as error:
            refused.append(str(error))
            continue
        case, compiler = Case(model, target_graph, constants, feeds, onnxruntime_of(model, feeds)), Compiler(target_graph)
        programs = [compiler.compile(default_plan(target_graph))]
        plan = random_plan(target_graph, np.random.default_rng(seed), 5, strips=True)
        other = None if plan is None else compiler.compile(plan)
        if other is not None and not isinstance(other, Infeasible):
            programs.append(other)
            any_plan += 1
        for program in programs:
            check_program(case, program)
            found, _ = run_program(case, program)
            for name, values in case.expected.items():
                np.testing.assert_array_equal(found[name].reshape(values.shape), values)
        whole += 1
    assert whole > 10
    assert any_plan > 5
    assert all("has no code for the NPU" in why or "equal ones, or one pixel" in why for why in refused), refused
