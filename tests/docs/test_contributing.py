"""The recipes for an operator and for a search move name what there is, and all that one needed."""

from __future__ import annotations

import re

from tests.docs.fences import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
SECTION = "".join(PAGE.partition(f"## Add {what}\n")[2].partition("\n## ")[0] for what in ("an operator", "a search move"))
ROW = re.compile(r"^ *\| `([\w/]+\.\w+)` \| (.*) \|$", re.MULTILINE)
# heading in the section -> what is in all files of the example, and in no other
EXAMPLES = {
    "Several operators": "instance_?norm|group_?norm|normalising",
    "A new kind": "relayout",
    "A knob": r"plan\.urgent|urgent: Annotated|\"urgent\"",
}
# lists of operators of ONNX, supported or not
LISTS = {"compiler/frontend/onnx_io/shape_inference.py"}


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


def test_example_is_its_whole_change_in_six_files() -> None:
    """Of the compiler: what else a recipe names is a test, or made by a script."""
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "compiler").rglob("*.py")}
    for heading, word in EXAMPLES.items():
        files = {path for path, _ in ROW.findall(SECTION.partition(f"**{heading}.**")[2].partition("**")[0])}
        assert 0 < len(files) <= 6, heading
        found = {path for path, text in sources.items() if re.search(word, text, re.IGNORECASE)} - LISTS
        assert found == {path for path in files if path in sources}, heading
