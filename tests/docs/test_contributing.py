"""The recipe for an operator names what there is, and all that one needed."""

from __future__ import annotations

import re

from tests.docs.fences import ROOT

SECTION = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add an operator\n")[2].partition("\n## ")[0]
ROW = re.compile(r"^ *\| `([\w/]+\.py)` \| (.*) \|$", re.MULTILINE)
# lists of all operators of ONNX, supported or not
LISTS = {"compiler/frontend/macs.py", "compiler/frontend/libraries.py"}


def test_files_of_the_recipe_exist() -> None:
    paths = re.findall(r"`([\w./]+/[\w./]+)`", SECTION)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_each_file_has_what_the_recipe_says() -> None:
    rows = ROW.findall(SECTION)
    assert rows
    for path, text in rows:
        source = (ROOT / path).read_text()
        missing = [name for name in re.findall(r"`(\w+)`", text) if not re.search(rf"\b{name}\b", source)]
        assert missing == [], path


def test_the_example_is_all_of_its_change_in_six_files() -> None:
    files = {path for path, _ in ROW.findall(SECTION)}
    assert len(files) <= 6
    word = re.compile(r"depth_?to_?space", re.IGNORECASE)
    sources = (ROOT / "compiler").rglob("*.py")
    assert {str(path.relative_to(ROOT)) for path in sources if word.search(path.read_text())} - LISTS == files
