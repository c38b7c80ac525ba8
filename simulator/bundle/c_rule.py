"""The threshold rule of `controller.c`: compiled by the host's C compiler and called from Python."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from simulator.bundle.bundle_files import C_SOURCES, package_file
from simulator.controller import Observation, ThresholdRule, ThresholdState
from simulator.npu.errors import BadInputError

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror")

_U32, _U64, _I32 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32


class _Rule(ctypes.Structure):
    _fields_ = (
        ("positions", _U32),
        ("ladder", ctypes.POINTER(_U32)),
        ("t_min", ctypes.POINTER(_U32)),
        ("t_max", ctypes.POINTER(_U32)),
        ("slice_cycles", _U64),
    )


class _Seen(ctypes.Structure):
    _fields_ = (("start", _U64), ("end", _U64), ("compute_cycles", _U64), ("load_store_cycles", _U64))


class _State(ctypes.Structure):
    _fields_ = (("variant", _U32), ("position", _U32), ("leaning", _I32), ("since", _U64))


def c_compiler() -> str | None:
    """The first C compiler on the path."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


@lru_cache(maxsize=1)
def c_library() -> ctypes.CDLL:
    """`controller.c` as a shared object.  Raises `BadInputError` without a compiler, or where it fails."""
    compiler = c_compiler()
    if compiler is None:
        raise BadInputError(f"no C compiler on the PATH ({', '.join(COMPILERS)}); --controller threshold is the same rule in Python")
    with TemporaryDirectory(prefix="tilefarm-") as folder:
        for name in C_SOURCES:
            (Path(folder) / name).write_bytes(package_file(name))
        words = [compiler, *FLAGS, "-O2", "-shared", "-fPIC", "-o", "controller.so", "controller.c"]
        process = subprocess.run(words, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        if process.returncode:
            error_line = next((line for line in process.stderr.splitlines() if "error" in line), "").strip()
            raise BadInputError(f"{compiler}: cannot compile controller.c: {error_line or f'exit code {process.returncode}'}")
        library = ctypes.CDLL(str(Path(folder) / "controller.so"))  # mapped: it outlives its file
    library.tilefarm_start.argtypes = (ctypes.POINTER(_Rule), ctypes.POINTER(_State))
    library.tilefarm_step.argtypes = (ctypes.POINTER(_Rule), ctypes.POINTER(_State), ctypes.POINTER(_Seen))
    library.tilefarm_start.restype = library.tilefarm_step.restype = _U32
    return library


class CThresholdRule:
    """A `SwitchingRule` with the states of `ThresholdRule`, all computed in C.  Raises as `c_library`."""

    def __init__(self, rule: ThresholdRule) -> None:
        self._library = c_library()
        positions = len(rule.ladder)
        columns = [(_U32 * len(values))(*values) for values in (rule.ladder, rule.t_min, rule.t_max)]
        self._rule = _Rule(positions, *columns, rule.slice_cycles)  # keeps the columns alive

    def start(self) -> ThresholdState:
        state = _State()
        self._library.tilefarm_start(self._rule, state)
        return _of(state)

    def step(self, state: ThresholdState, observation: Observation) -> ThresholdState:
        new_state = _State(state.variant, state.position, state.leaning, state.since)
        counted = _Seen(observation.start, observation.end, observation.compute_cycles, observation.load_store_cycles)
        if self._library.tilefarm_step(self._rule, new_state, counted) != new_state.variant:
            raise RuntimeError("controller.c returned another variant than its state has")
        return _of(new_state)


def _of(state: _State) -> ThresholdState:
    return ThresholdState(state.variant, state.position, state.leaning, state.since)
