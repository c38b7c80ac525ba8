"""Does onnxruntime run a model that is to be searched for?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from compiler.model import LoweredModel
from compiler.package.onnx_out import write_packed
from simulator.npu.errors import BadInputError
from simulator.session import InferenceSession
from tuner.verify.check import random_feeds
from tuner.verify.reference import Stored, reference


def check_runs(opened: LoweredModel) -> None:
    """Have onnxruntime run the model: where it does not, nobody could confirm the values of what is found.  Raises `BadInputError`."""
    with TemporaryDirectory(prefix="tilefarm-") as folder:
        body = Path(folder) / "model.onnx"
        write_packed([], replace(opened.written, pieces=()), body)
        try:
            reference(body, random_feeds(InferenceSession(body), 0), Stored())
        except BadInputError as error:
            raise BadInputError(f"{opened.source.model}: {str(error).removeprefix(f'{body}: ')}") from None
