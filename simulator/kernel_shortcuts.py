"""Shortcuts in numba's compiler: work that it repeats, or does for nobody.  Kernels compute the same without them, and take longer to
compile (`scripts/bench_cold.py`).
"""

from __future__ import annotations

from functools import cache
from typing import Any


def take_shortcuts() -> None:
    """Have numba take all of them."""
    from numba.core import base, codegen, compiler_lock, errors, inline_closurecall, ir, lowering, postproc, targetconfig, typeinfer
    from numba.core.types import functions

    _remember_signatures(functions.BaseFunction)
    _remember_sizes(base.BaseContext)
    _compare_options(targetconfig.TargetConfig)
    _find_lifetimes_late(postproc)
    _optimise_once(codegen.CPUCodeLibrary)
    _lock_silently(type(compiler_lock.global_compiler_lock))
    _look_for_closures(inline_closurecall.InlineClosureCallPass)
    _list_variables(ir)
    base._has_loc = cache(base._has_loc)  # it reads a signature for every call of a built-in function
    lowering.new_error_context = typeinfer.new_error_context = _error_context(errors)


def _remember_signatures(functions: Any) -> None:
    """Resolve each call of a built-in function once for its types; kernels have 25 calls of each, tried against all overloads."""
    resolve, signatures = functions.get_call_type, dict[Any, Any]()

    def resolve_once(self: Any, context: Any, args: Any, keywords: Any) -> Any:
        key = self, context, tuple(args), tuple(keywords.items())
        if (signature := signatures.get(key)) is None:
            signature = signatures[key] = resolve(self, context, args, keywords)
        return signature

    functions.get_call_type = resolve_once


def _remember_sizes(context: Any) -> None:
    """Find the size of an LLVM type once; numba has LLVM parse a module for it."""
    size, sizes = context.get_abi_sizeof, dict[Any, int]()

    def find_once(self: Any, kind: Any) -> int:
        if (known_size := sizes.get(kind)) is None:
            known_size = sizes[kind] = size(self, kind)
        return known_size

    context.get_abi_sizeof = find_once


def _lock_silently(lock: Any) -> None:
    """Take the compiler's lock without an event for listeners, of whom there are none; it is taken 70,000 times."""
    lock.acquire, lock.release = (lambda self: self._lock.acquire()), (lambda self: self._lock.release())


def _look_for_closures(inlining: Any) -> None:
    """Inline closures and lists where there are any."""
    run = inlining.run

    def run_if_any(self: Any) -> None:
        if any(expr.op in ("make_function", "build_list") for block in self.func_ir.blocks.values() for expr in block.find_exprs()):
            run(self)

    inlining.run = run_if_any


def _list_variables(ir: Any) -> None:
    """List variables of an instruction without a look at its numbers, texts and locations, of which it has most."""
    list_members, leaves = ir.Inst._rec_list_vars, {str, int, bool, type(None), ir.Loc}

    def list_some(self: Any, member: Any) -> list[Any]:
        kind = type(member)
        return [member] if kind is ir.Var else [] if kind in leaves else list_members(self, member)

    ir.Inst._rec_list_vars = list_some


def _error_context(errors: Any) -> Any:
    """Context that explains an error in numba's compiler, as `new_error_context`; entered for every instruction, as a class, not as a
    generator."""

    class ErrorContext:
        __slots__ = ("names", "text", "values")

        def __init__(self, text: str, *values: Any, **names: Any) -> None:
            self.text, self.values, self.names = text, values, names

        def __enter__(self) -> None: ...

        def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
            if isinstance(error, errors.NumbaError):
                errors.loc_info.update(self.names)
                error.add_context(errors._format_msg(self.text, self.values, self.names))

    return ErrorContext


def _compare_options(options: Any) -> None:
    """Compare compiler options by what is set; numba builds a dictionary of all of them for every call of a built-in function."""

    def equal(self: Any, other: Any) -> Any:
        if type(self) is not type(other):
            return NotImplemented
        return self is other or self._values == other._values or self.values() == other.values()

    options.__eq__ = equal
    options.__hash__ = lambda self: hash(type(self))  # keys have types of arguments beside the options


def _find_lifetimes_late(postproc: Any) -> None:
    """Find lifetimes of variables when they are asked for; numba finds them after every pass, and uses those after the last."""
    process, canonicalize = postproc.PostProcessor.run, postproc.transforms.canonicalize_cfg

    def process_lazily(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        function = self.func_ir
        if emit_dels or function.is_generator:
            process(self, emit_dels, extend_lifetimes)
            return
        function.blocks = canonicalize(function.blocks)
        function.variable_lifetime = postproc.VariableLifetime(function.blocks)
        function.generator_info = None

    postproc.PostProcessor.run = process_lazily


def _optimise_once(library: Any) -> None:
    """Optimise a kernel by LLVM's pipeline once; numba runs it on each function alone, and twice on the whole."""

    def set_layout(self: Any, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def optimise(self: Any) -> None:
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)

    library._optimize_functions, library._optimize_final_module = set_layout, optimise
