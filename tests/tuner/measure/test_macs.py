"""Multiply-adds of a model, of its unit and of a program."""

from __future__ import annotations

import onnx

from compiler.build import compile_plan, default_plan
from compiler.frontend import lower
from compiler.frontend.partition.macs import model_macs
from compiler.model import ModelSpec, lower_model
from compiler.ops.lower_graph import make_unit
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.models import small_model
from tuner.measure.macs import npu_macs, program_macs


def test_macs_are_counted_twice_the_same(tmp_path):
    model = tmp_path / "conv_chain.onnx"
    onnx.save(small_model("conv_chain"), model)
    opened = lower_model(ModelSpec(model, load_machine("edge")))
    compiled = compile_plan(opened.compiler, default_plan(opened.target_graph))
    # conv 20x12x10x(3x3x3), conv 40x5x6x(20x3x3) after the pool, Gemm 40x10
    by_hand = 20 * 10 * 12 * 27 + 40 * 5 * 6 * 180 + 400
    assert model_macs(opened.model) == opened.target_graph.macs == by_hand
    assert by_hand <= program_macs(compiled) < 20 * by_hand


def test_an_lrn_adds_no_macs_to_the_model():
    model = small_model("lrn_chain")
    target_graph = make_unit(lower(model), load_machine("edge"), DataType.float16)
    assert npu_macs(target_graph, model) == model_macs(onnx.shape_inference.infer_shapes(model)) < target_graph.macs
