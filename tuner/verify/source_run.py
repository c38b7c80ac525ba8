"""Check that onnxruntime runs a model before its search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from compiler.model import LoweredModel
from compiler.package.onnx_out import write_packed
from simulator.npu.errors import BadInputError
from simulator.session import InferenceSession
from tuner.verify.check import random_feeds
from tuner.verify.reference import StoredTensors, run_reference


def check_model_runs(lowered: LoweredModel) -> None:
    """Run the model on onnxruntime: otherwise nothing could confirm the values of the results.  Raises `BadInputError`."""
    with TemporaryDirectory(prefix="tilefarm-") as folder:
        body = Path(folder) / "model.onnx"
        write_packed([], replace(lowered.written, pieces=()), body)
        try:
            run_reference(body, random_feeds(InferenceSession(body), 0), StoredTensors())
        except BadInputError as error:
            raise BadInputError(f"{lowered.source.model}: {str(error).removeprefix(f'{body}: ')}") from None
