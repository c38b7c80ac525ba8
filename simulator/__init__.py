"""The machine: facts (`simulator.npu`), meaning (`functional`), time (`timing`), order (`sanitizer`).

session = simulator.InferenceSession("RUN/best.onnx")
(y,) = session.run(None, {"x": x}, level="severe")
"""

import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

from simulator.npu.lazily import lazily

if TYPE_CHECKING:
    from simulator.session import InferenceSession, SessionOptions

__all__ = ["VERSION", "InferenceSession", "SessionOptions"]

VERSION = "1.9"
"""Of what a plan is measured to take: of the clock, and of the code that the compiler makes of a plan.  Measurements of another version are
not compared with, or learned from; `tests/compiler/test_measured.py` says when it has to be raised."""


class _BeforeNumba:
    """Finds numba, and says where kernels are kept, how they are loaded, and how they are compiled.

    That takes reading all sources, which is longer than commands take that have no kernels.
    """

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != "numba":
            return None
        sys.meta_path.remove(self)
        from simulator.kernel_cache import own_folder
        from simulator.kernel_compiling import compile_as_wholes
        from simulator.kernel_loading import changed_spec, load_without_compiler

        own_folder()
        load_without_compiler()
        if name in sys.modules:
            compile_as_wholes(sys.modules[name])
        return changed_spec(name, None, compile_as_wholes)


sys.meta_path.insert(0, _BeforeNumba())
if "numba" in sys.modules:
    sys.meta_path[0].find_spec("numba", None)

if not TYPE_CHECKING:  # else any name would do
    __getattr__ = lazily(__name__, dict.fromkeys(("InferenceSession", "SessionOptions"), "simulator.session"))
