"""Compilation of kernels: each kernel as a whole, with all functions that it calls.

numba makes a kernel of every function that a kernel calls: with wrappers for Python, machine code and a cache file.  The optimised
code contains all functions that it calls in turn, and its caller optimises it again, so a function ten calls deep is optimised ten
times.  Here a function that is compiled for a caller is a *part*: unoptimised LLVM code, which is linked into the kernel that Python calls,
and optimised once there.  If Python calls a part later, it is compiled again as a kernel.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from simulator.kernel_indexing import count_owners_only, index_directly, refuse_sizes_shortly
from simulator.kernel_shortcuts import take_shortcuts

_KNOWN = "0.68."  # numba's internals are patched, so other versions compile without the patch
_depth = 0  # nesting of functions that are being compiled, each for its caller
_functions = 0  # number of functions that this process has compiled
_claims = ExitStack()  # locks of kernels that this process compiles


class CompiledKernel(NamedTuple):
    """Compiled kernel.  arguments: numba's types.  functions: number of new functions: the kernel and those parts that no earlier kernel of
    this process has.  Seconds of CPU and of wall time."""

    name: str
    arguments: tuple[Any, ...]
    functions: int
    cpu_s: float
    wall_s: float


listeners: list[Callable[[CompiledKernel | None], None]] = []
"""Called when the compilation of a kernel begins, with None, and when it ends."""


def compiles_part() -> bool:
    """Whether a part is being compiled."""
    return _depth > 1


class _Part:
    """Key in place of the entry point of a part, by which numba distinguishes functions."""


def compile_as_wholes(numba: Any) -> None:
    """Have numba compile so.  numba: the module, imported."""
    if not numba.__version__.startswith(_KNOWN):
        return
    from numba.core import caching, codegen, cpu, dispatcher, imputils, lowering, sigutils, types
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.runtime import context

    index_directly(types, imputils.lower_builtin)
    count_owners_only(context, lowering)
    take_shortcuts()
    compile_one, add_overload = dispatcher.Dispatcher.compile, dispatcher.Dispatcher.add_overload
    load_overload, save_overload = caching.Cache.load_overload, caching.Cache.save_overload
    get_executable = cpu.CPUContext.get_executable
    function_compiler: Any = vars(dispatcher)["_FunctionCompiler"]
    compile_types = function_compiler.compile
    pointer_of = codegen.JITCodeLibrary.get_pointer_to_function
    wrappers = {name: getattr(lowering.BaseLower, name) for name in ("create_cpython_wrapper", "create_cfunc_wrapper")}

    def compile_at_depth(self: Any, signature: Any) -> Any:
        global _depth
        with global_compiler_lock:
            arguments = tuple(sigutils.normalize_signature(signature)[0])
            compiled = self.overloads.get(arguments)
            if _depth == 0 and compiled is not None and isinstance(compiled.entry_point, _Part):
                del self.overloads[arguments]
            cpu_s, wall_s, functions = time.process_time(), time.perf_counter(), _functions
            _depth += 1
            try:
                compiled_now = compile_one(self, signature)
            finally:
                _depth -= 1
                if _depth == 0:
                    _claims.close()
            if _depth == 0 and _functions > functions:
                name = f"{self.py_func.__module__}.{self.py_func.__qualname__}"
                took = time.process_time() - cpu_s, time.perf_counter() - wall_s
                _tell(CompiledKernel(name, arguments, _functions - functions, *took))
            return compiled_now

    def compile_in_turn(self: Any, *what: Any) -> Any:
        global _functions
        _functions += 1
        if not compiles_part():
            refuse_sizes_shortly()
            _tell(None)
        return compile_types(self, *what)

    def executable_of_kernels(self: Any, made: Any, function: Any, environment: Any) -> Any:
        if compiles_part():
            return _Part()
        made.finalize_whole()
        return get_executable(self, made, function, environment)

    def add_kernels(self: Any, made: Any) -> None:
        if isinstance(made.entry_point, _Part):  # Python cannot find a part by name
            self.overloads[tuple(made.signature.args)] = made
        else:
            add_overload(self, made)

    def load_kernels(self: Any, signature: Any, context: Any) -> Any:
        if compiles_part():
            return None
        loaded = load_overload(self, signature, context)
        if loaded is None and _claim(self):
            loaded = load_overload(self, signature, context)
        return loaded

    def save_kernels(self: Any, signature: Any, made: Any) -> None:
        if not isinstance(made.entry_point, _Part):
            save_overload(self, signature, made)

    def wrap_kernels(name: str) -> Any:
        return lambda self, *options: wrappers[name](self, *options) if not compiles_part() else None

    def finalize_part(self: Any) -> None:
        self._raise_if_finalized()
        for library in self._linking_libraries:
            self._reload_init.update(library._reload_init)
        self._finalized = self.is_part = True

    def finalize_whole(self: Any) -> None:
        if self._finalized and not self.is_part:
            return
        for library in _called_libraries(self):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self.is_part = False
        self._optimize_final_module()
        self._final_module.verify()
        self._finalize_final_module()

    def pointer_to_function(self: Any, name: str) -> Any:
        self.finalize_whole()
        return pointer_of(self, name)

    changes: dict[Any, dict[str, Any]] = {
        dispatcher.Dispatcher: {"compile": compile_at_depth, "add_overload": add_kernels},
        function_compiler: {"compile": compile_in_turn},
        cpu.CPUContext: {"get_executable": executable_of_kernels},
        caching.Cache: {"load_overload": load_kernels, "save_overload": save_kernels},
        lowering.BaseLower: {name: wrap_kernels(name) for name in wrappers},
        codegen.CPUCodeLibrary: {"is_part": False, "finalize": finalize_part, "finalize_whole": finalize_whole},
        codegen.JITCodeLibrary: {"get_pointer_to_function": pointer_to_function},
    }
    for changed, members in changes.items():
        for name, member in members.items():
            setattr(changed, name, member)


def _claim(cache: Any) -> bool:
    """Wait until no other process compiles this kernel, then lock it; returns whether another process was compiling it.

    Processes that need the same kernels so compile different ones.  A kernel that cannot be locked is compiled by every process.
    """
    name = cache._impl.filename_base
    try:
        cache._impl.locator.ensure_cache_path()
        lock = _claims.enter_context(Path(cache.cache_path, f"{name}.claim").open("w"))  # noqa: SIM115  until it is compiled
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however that ends
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return True
    except OSError:
        pass
    return False


def _tell(kernel: CompiledKernel | None) -> None:
    for listener in listeners:
        listener(kernel)


def _called_libraries(library: Any) -> Iterator[Any]:
    """Libraries that a library calls, directly or not, callers first: the linker takes a definition only if it is needed already."""
    seen, order = set[int](), list[Any]()

    def visit(caller: Any) -> None:
        for linked in caller._linking_libraries:
            if id(linked) not in seen:
                seen.add(id(linked))
                visit(linked)
                order.append(linked)

    visit(library)
    return reversed(order)
