"""A group of commands of which each is made when it is asked for.

To make one, typer reads the signature of its function and evaluates what is written there; for all of them that takes as long as typer's
own import.  A list of the commands needs their names and the first lines of their texts.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, MutableMapping
from typing import Any

import typer
from typer.core import TyperGroup


def new_app(add_completion: bool = False, **settings: Any) -> typer.Typer:
    """A typer app as all are here.  Help is plain text: what rich draws around it takes longer than everything else together."""
    return typer.Typer(add_completion=add_completion, pretty_exceptions_enable=False, rich_markup_mode=None, **settings)


class LaterGroup(TyperGroup):
    """The commands and groups that were given to `later`, beside those of typer's own making."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Later()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_line(app)) for name, app in _apps.items()])


_apps: dict[str, typer.Typer] = {}


def later(*apps: typer.Typer) -> None:
    """Take the commands and groups of these into `LaterGroup`."""
    for app in apps:
        for command in app.registered_commands:
            assert command.name is not None
            _apps[command.name] = alone = new_app()
            alone.registered_commands.append(command)
        for group in app.registered_groups:
            assert isinstance(group.name, str)
            assert group.typer_instance is not None
            _apps[group.name] = group.typer_instance


def _first_line(app: typer.Typer) -> str:
    if app.registered_commands and not isinstance(app.info.help, str):
        return (inspect.getdoc(app.registered_commands[0].callback) or "").partition("\n\n")[0]
    return str(app.info.help)


class _Later(MutableMapping[str, Any]):
    """click's commands by name."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = typer.main.get_command(_apps[name])
            self._made[name].name = name
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_apps)

    def __len__(self) -> int:
        return len(_apps)
