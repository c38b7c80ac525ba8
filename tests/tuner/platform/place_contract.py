"""What holds of every `tuner.platform.files.AnyPath`.  A subclass of `PlaceContract` says with `fresh` where there is a new folder.

`ReaderContract` is as much of it as a place has that is only read, and written whole.
"""

from __future__ import annotations

import pytest

from simulator.npu.errors import BadInputError
from simulator.npu.files import leftover_of, put_atomically, remove_leftovers, write_atomically
from tuner.platform.files import AnyPath, LockedError


class ReaderContract:
    def fresh(self, tmp_path) -> AnyPath:
        """An empty folder."""
        raise NotImplementedError

    @pytest.fixture
    def folder(self, tmp_path) -> AnyPath:
        return self.fresh(tmp_path)

    def test_new_folder_is_empty_with_parents_and_children(self, folder) -> None:
        assert folder.is_dir()
        assert folder.exists()
        assert not folder.is_file()
        assert list(folder.iterdir()) == []
        below = folder / "a" / "b.json"
        assert below.name == "b.json"
        assert below.parent.name == "a"
        assert below.parent.parent.name == folder.name
        assert str(below) == f"{folder}/a/b.json"
        assert str(folder / "a/b.json") == str(below)
        assert str(below.resolve()).endswith("a/b.json")
        assert [below.exists(), below.is_file(), below.is_dir()] == [False] * 3

    def test_put_is_read_and_replaces_the_old(self, folder) -> None:
        file = folder / "file"
        for chunks in ([b"a longer text"], [], [b"two ", memoryview(b"chunks")], [bytes(range(256)) * 3000, b"and more"]):
            file.put(chunks)
            assert file.read_bytes() == bytes(file.mapped()) == b"".join(chunks)
        assert file.is_file()
        assert file.exists()
        assert not file.is_dir()
        file.fsync()
        folder.fsync()

    def test_missing_file_is_an_error_of_the_files(self, folder) -> None:
        for call in ("read_bytes", "mapped", "version"):
            with pytest.raises(OSError):
                getattr(folder / "nothing", call)()
        with pytest.raises(OSError):
            (folder / "nothing").replace(folder / "other")

    def test_a_version_tells_of_a_change(self, folder) -> None:
        (folder / "file").put([b"one"])
        first = (folder / "file").version()
        assert first == (folder / "file").version()
        assert first[1] == 3
        (folder / "file").put([b"three"])
        assert (folder / "file").version() != first

    def test_folders_list_what_is_in_them(self, folder) -> None:
        (folder / "x").mkdir()
        (folder / "x" / "y").mkdir(exist_ok=True)
        (folder / "x" / "y").mkdir(exist_ok=True)
        (folder / "p" / "q").mkdir(parents=True, exist_ok=True)
        (folder / "x" / "file").put([b"1"])
        (folder / "x" / ".hidden").put([b"2"])
        assert sorted(path.name for path in folder.iterdir()) == ["p", "x"]
        assert {path.name: path.is_file() for path in (folder / "x").iterdir()} == {"y": False, "file": True, ".hidden": True}

    def test_glob_finds_names_at_any_depth(self, folder) -> None:
        for name in (
            "run.json",
            "a/run.json",
            "a/b/run.json",
            "a/log/00000000.parquet",
            "a/log/00000010.parquet",
            "a/.x.tmp",
            "c/run.yaml",
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).put([b"1"])

        def found(pattern: str) -> list[str]:
            return sorted(str(path).removeprefix(f"{folder}/") for path in folder.glob(pattern))

        assert found("**/run.json") == ["a/b/run.json", "a/run.json", "run.json"]
        assert found("a/**/run.json") == ["a/b/run.json", "a/run.json"]
        assert found("run.json") == ["run.json"]
        assert found("*.json") == ["run.json"]
        assert found("*/log/*[1-9].parquet") == []
        assert found("a/log/*[0-9].parquet") == ["a/log/00000000.parquet", "a/log/00000010.parquet"]
        assert found("a/*.tmp") == ["a/.x.tmp"], "hidden names are names"
        assert found("*/run.*") == ["a/run.json", "c/run.yaml"]
        assert found("nothing/*.json") == []

    def test_remove_takes_files_folders_and_missing_ones(self, folder) -> None:
        (folder / "x" / "y").mkdir(parents=True)
        (folder / "x" / "y" / "file").put([b"1"])
        (folder / "file").put([b"1"])
        for name in ("x", "file", "nothing"):
            (folder / name).remove()
            assert not (folder / name).exists()
        assert list(folder.iterdir()) == []

    def test_replace_takes_the_place_of_what_is_there(self, folder) -> None:
        (folder / "new").put([b"new"])
        (folder / "old").put([b"old and longer"])
        (folder / "new").replace(folder / "old")
        assert (folder / "old").read_bytes() == b"new"
        assert not (folder / "new").exists()

    def test_written_whole_leaves_nothing_beside_it(self, folder) -> None:
        file = folder / "state.json"
        for text in (b"first", b"second"):
            write_atomically(file, [text])
            assert file.read_bytes() == text
        assert [path.name for path in folder.iterdir()] == ["state.json"]
        with pytest.raises(BadInputError, match=r"state\.json/below: cannot be written: "):
            write_atomically(file / "below", [b"1"])

    def test_nobody_knows_of_a_lock_or_everybody(self, folder) -> None:
        assert not (folder / ".lock").is_locked()


class PlaceContract(ReaderContract):
    def test_put_at_a_byte_truncates_there(self, folder) -> None:
        file = folder / "file"
        file.put([], 0)
        assert file.read_bytes() == b""
        file.put([b"0123456789"], 0)
        file.put([b"ab", b"c"], 4)
        assert file.read_bytes() == b"0123abc"
        file.put([], 2)
        assert file.read_bytes() == b"01"
        with pytest.raises(OSError):
            (folder / "nothing").put([b"1"], 4)

    def test_mkdir_where_something_is_or_nothing_is_above(self, folder) -> None:
        (folder / "x").mkdir()
        with pytest.raises(FileExistsError):
            (folder / "x").mkdir()
        with pytest.raises(FileNotFoundError):
            (folder / "y" / "z").mkdir()
        (folder / "file").put([])
        with pytest.raises(FileExistsError):
            (folder / "file").mkdir(exist_ok=True)

    def test_folder_is_renamed_with_its_contents(self, folder) -> None:
        (folder / "a").mkdir()
        (folder / "a" / "file").put([b"1"])
        (folder / "a").replace(folder / "b")
        assert (folder / "b" / "file").read_bytes() == b"1"
        assert not (folder / "a").exists()

    def test_a_mapping_outlives_the_name(self, folder) -> None:
        file = folder / "file"
        file.put([b"still here"])
        data = file.mapped()
        file.remove()
        assert bytes(data) == b"still here"

    def test_file_beside_is_another_and_a_leftover(self, folder) -> None:
        file = folder / "state.json"
        beside = file.beside()
        assert str(beside.parent) == str(folder)
        assert leftover_of(beside.name) == "state.json"
        beside.put([b"half"])
        put_atomically(file, [b"whole"])
        assert beside.read_bytes() == b"half", "somebody else's"
        remove_leftovers(folder)
        assert [path.name for path in folder.iterdir()] == ["state.json"]

    def test_unwritable_content_leaves_the_old_file_alone(self, folder) -> None:
        file = folder / "state.json"
        put_atomically(file, [b"old"])

        def chunks():
            yield b"ne"
            raise OSError(28, "No space left on device")

        with pytest.raises(OSError, match="No space left"):
            put_atomically(file, chunks())
        assert file.read_bytes() == b"old"
        assert [path.name for path in folder.iterdir()] == ["state.json"]

    def test_one_holds_a_lock_at_a_time(self, folder) -> None:
        file = folder / ".lock"
        lock = file.lock()
        assert file.is_locked()
        with pytest.raises(LockedError, match="process"):
            file.lock()
        lock.close()
        assert not file.is_locked()
        file.lock().close()
        with pytest.raises(OSError):
            (folder / "nothing" / ".lock").lock()
