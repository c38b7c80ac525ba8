"""A group of commands of which each is a module, imported and made when it is asked for.

To make one, typer reads the signature of its function and evaluates what is written there; for all of them that takes as long as typer's
own import.  A list of the commands needs their names and a line of help each.
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
    """What a command does with the path that a parameter is: in its annotation.  A `Path` without is read."""

    writes: bool
    folder: bool = False


READ, FILE, FOLDER = PathUse(False), PathUse(True), PathUse(True, folder=True)


def without_threads() -> None:
    """Before numpy is imported: its BLAS starts a thread for every core then, which takes longer than to read a log, for nothing."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def later_group(lines: Mapping[str, str]) -> type[TyperGroup]:
    """A group of the commands whose names and first lines of help these are.

    A command is `app` of the module of its name beside this one; a docstring of its function is what its help says after that line.
    """

    class LaterGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands = _Later(lines)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            del ctx
            with formatter.section("Commands"):
                formatter.write_dl(list(lines.items()))

    return LaterGroup


class _Later(MutableMapping[str, Any]):
    """click's commands by name."""

    def __init__(self, lines: Mapping[str, str]) -> None:
        self._lines = lines
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            line = self._lines[name]  # KeyError: no command of that name, whatever module has it
            app = import_module(f"{__package__}.{name}").app
            for command in app.registered_commands:
                command.callback = _guard_inputs(_spread(command.callback))
            made = typer.main.get_command(app)
            made.name, made.help = name, "\n\n".join(filter(None, (line, made.help)))
            self._made[name] = made
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)


def _spread(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the fields of a dataclass as options where it takes one: what several commands take together is declared there."""
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, Any] = {name: one.annotation for name, one in signature.parameters.items() if is_dataclass(one.annotation)}
    if not groups:
        return function
    parameters: list[inspect.Parameter] = []
    for name, one in signature.parameters.items():
        if name in groups:
            hints = get_type_hints(groups[name], include_extras=True)
            named = [(field.name, field.default) for field in fields(groups[name])]
            parameters += [inspect.Parameter(key, one.KEYWORD_ONLY, default=value, annotation=hints[key]) for key, value in named]
        else:
            parameters.append(one)

    @wraps(function)
    def spread(**values: Any) -> Any:
        made = {name: group(**{field.name: values.pop(field.name) for field in fields(group)}) for name, group in groups.items()}
        return function(**values, **made)

    vars(spread)["__signature__"] = signature.replace(parameters=parameters)
    spread.__annotations__ = {one.name: one.annotation for one in parameters}
    return spread


def path_uses(function: Callable[..., Any]) -> dict[str, PathUse]:
    """Of the parameters of a command that are paths, or may be."""
    uses = {}
    for name, one in inspect.signature(function, eval_str=True).parameters.items():
        marks = [mark for mark in getattr(one.annotation, "__metadata__", ()) if isinstance(mark, PathUse)]
        if marks or "Path" in str(getattr(one.annotation, "__origin__", "")):
            uses[name] = marks[0] if marks else READ
    return uses


def _guard_inputs(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind a look at what it is to write: a place for it, and none of its inputs (`simulator.outputs`)."""
    uses = path_uses(function)
    if not any(use.writes for use in uses.values()):
        return function

    @wraps(function)
    def guarded(**values: Any) -> Any:
        from simulator.outputs import check_apart, check_out

        inputs = [path for name, use in uses.items() if not use.writes for path in _paths(values.get(name))]
        for name, use in uses.items():
            if use.writes and values.get(name) is not None:
                (check_apart if use.folder else check_out)(values[name], inputs, f"--{name.replace('_', '-')}")
        return function(**values)

    return guarded


def _paths(value: object) -> Iterator[Path]:
    """Of an option: PATH, LEVEL=PATH, PATH,PATH, a URL of a folder here, or several of them."""
    if isinstance(value, list):
        for one in value:
            yield from _paths(one)
    elif value is not None:
        text = str(value)
        yield from (Path(part) for part in (text, text.partition("=")[2], text.removeprefix("file://"), *text.split(",")) if part)
