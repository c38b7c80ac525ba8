"""The machine: specification (`simulator.npu`), semantics (`functional`), timing (`timing`), order checks (`sanitizer`).

session = simulator.InferenceSession("RUN/best.onnx")
(y,) = session.run(None, {"x": x}, level="severe")
"""

import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

from simulator.npu.lazily import lazy_attributes

if TYPE_CHECKING:
    from simulator.session import InferenceSession, SessionOptions

__all__ = ["VERSION", "InferenceSession", "SessionOptions"]

VERSION = "1.9"
"""Version of the clock and of the code generated for a plan.  Measured cycles of other versions are neither compared nor used for training;
`tests/compiler/test_measured.py` says when the version must be raised."""


class _BeforeNumba:
    """Import hook for numba that sets the cache folder, the loading and the compiling of kernels first.

    This reads all sources, which takes longer than a whole command without kernels.
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

if not TYPE_CHECKING:  # hidden from type checkers, for which any name would then exist
    __getattr__ = lazy_attributes(__name__, dict.fromkeys(("InferenceSession", "SessionOptions"), "simulator.session"))
