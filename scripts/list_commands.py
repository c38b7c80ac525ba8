"""Write docs/cli.md from the commands' own help.

    python scripts/list_commands.py

The test beside it (tests/docs/test_cli_page.py) fails while the page is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tuner.cli import COMMANDS, app  # noqa: E402

PAGE = ROOT / "docs/cli.md"
WIDTH = 120
EXIT_CODES = {
    0: "done",
    1: "a check failed",
    2: "bad input",
    3: "does not fit the machine, or less runs on the NPU than `--min-npu-share`",
    4: "tuned, but values are not confirmed against onnxruntime: they differ, or could not be compared",
    70: "a bug; a file has the details",
    75: "the Ray cluster went away; `--resume` goes on",
    130: "interrupted",
    143: "ended by SIGTERM",
}


def leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Full names of a command or of the commands of a group."""
    if hasattr(command, "commands"):
        for part, leaf in command.commands.items():
            yield from leaves(leaf, f"{name} {part}")
    else:
        yield name, command


def page() -> str:
    """The whole page."""
    group: Any = typer.main.get_command(app)
    commands = [leaf for name in COMMANDS for leaf in leaves(group.commands[name], name)]
    lines = [
        "# Commands",
        "",
        "<!-- written by scripts/list_commands.py; do not edit -->",
        "",
        "`tilefarm COMMAND --help` prints the same.",
        "`--debug`, of any command, shows where an error came from; `--json`, where a command has it, prints one JSON value.",
        "`tilefarm --install-completion` adds completion to bash, zsh or fish.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()),
        "",
        "| command | purpose |",
        "|---|---|",
        *(f"| [`{name}`](#{name.replace(' ', '-')}) | {purpose(command)} |" for name, command in commands),
    ]
    for name, command in commands:
        context = command.make_context(f"tilefarm {name}", [], resilient_parsing=True, max_content_width=WIDTH, terminal_width=WIDTH)
        lines += ["", f"## {name}", "", "```text", *(line.rstrip() for line in command.get_help(context).splitlines()), "```"]
    return "\n".join(lines) + "\n"


def purpose(command: Any) -> str:
    """The first paragraph of a command's help."""
    return " ".join(str(command.help).split("\n\n")[0].replace("|", "\\|").split())


def main() -> None:
    """Write docs/cli.md from the help of every command."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
