"""Command group that imports each command's module on demand.

To make a command, typer reads the signature of its function and evaluates the annotations; for all commands this takes as long as the
import of typer.  A list of the commands needs only their names and one help line each.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import typer
from typer.core import TyperGroup


class PathUse(NamedTuple):
    """Use of a path parameter, written in its annotation.  A `Path` without a `PathUse` is an input."""

    writes: bool
    folder: bool = False


READ, FILE, FOLDER = PathUse(False), PathUse(True), PathUse(True, folder=True)


def without_threads() -> None:
    """Keep BLAS single-threaded; call before numpy is imported, since starting a thread per core takes longer than reading a log."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def lazy_group(lines: Mapping[str, str]) -> type[TyperGroup]:
    """Group of commands, from their names and first help lines.

    A command is the `app` of the module with its name in this package; the docstring of its function follows the first line in its help.
    """

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands = _LazyCommands(lines)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            del ctx
            with formatter.section("Commands"):
                formatter.write_dl(list(lines.items()))

    return LazyGroup


class _LazyCommands(MutableMapping[str, Any]):
    """Mapping of click's commands by name, imported on first access."""

    def __init__(self, lines: Mapping[str, str]) -> None:
        self._lines = lines
        self._imported: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._imported:
            line = self._lines[name]  # KeyError: no such command, even if a module has the name
            app = import_module(f"{__package__}.{name}").app
            for command in app.registered_commands:
                command.callback = _guard_inputs(_expand_options(command.callback))
            command_object = typer.main.get_command(app)
            command_object.name, command_object.help = name, "\n\n".join(filter(None, (line, command_object.help)))
            self._imported[name] = command_object
        return self._imported[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._imported[name] = command

    def __delitem__(self, name: str) -> None:
        del self._imported[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)


def _expand_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that the fields of its dataclass parameters become options; several commands share such a dataclass."""
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, Any] = {name: param.annotation for name, param in signature.parameters.items() if is_dataclass(param.annotation)}
    if not groups:
        return function
    parameters: list[inspect.Parameter] = []
    for name, param in signature.parameters.items():
        if name in groups:
            hints = get_type_hints(groups[name], include_extras=True)
            defaults = [(field.name, field.default) for field in fields(groups[name])]
            parameters += [inspect.Parameter(key, param.KEYWORD_ONLY, default=value, annotation=hints[key]) for key, value in defaults]
        else:
            parameters.append(param)

    @wraps(function)
    def command(**values: Any) -> Any:
        grouped = {name: group(**{field.name: values.pop(field.name) for field in fields(group)}) for name, group in groups.items()}
        return function(**values, **grouped)

    vars(command)["__signature__"] = signature.replace(parameters=parameters)
    command.__annotations__ = {param.name: param.annotation for param in parameters}
    return command


def path_uses(function: Callable[..., Any]) -> dict[str, PathUse]:
    """Uses of a command's path parameters."""
    uses = {}
    for name, param in inspect.signature(function, eval_str=True).parameters.items():
        marks = [mark for mark in getattr(param.annotation, "__metadata__", ()) if isinstance(mark, PathUse)]
        if marks or "Path" in str(getattr(param.annotation, "__origin__", "")):
            uses[name] = marks[0] if marks else READ
    return uses


def _guard_inputs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that its outputs are checked first: a writable place, and none of its inputs (`simulator.outputs`)."""
    uses = path_uses(function)
    if not any(use.writes for use in uses.values()):
        return function

    @wraps(function)
    def guarded(**values: Any) -> Any:
        from simulator.outputs import check_distinct, check_out

        inputs = [path for name, use in uses.items() if not use.writes for path in _paths(values.get(name))]
        for name, use in uses.items():
            if use.writes and values.get(name) is not None:
                (check_distinct if use.folder else check_out)(values[name], inputs, f"--{name.replace('_', '-')}")
        return function(**values)

    return guarded


def _paths(value: object) -> Iterator[Path]:
    """Paths in an option's value: PATH, LEVEL=PATH, PATH,PATH, a URL of a local folder, or a list of them."""
    if isinstance(value, list):
        for element in value:
            yield from _paths(element)
    elif value is not None:
        text = str(value)
        yield from (Path(part) for part in (text, text.partition("=")[2], text.removeprefix("file://"), *text.split(",")) if part)
