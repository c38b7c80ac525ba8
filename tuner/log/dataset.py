"""Append-only Parquet datasets: the farm's memory.

A dataset is a folder of parts `00000000.parquet` (no rows, only the schema), `00000001.parquet`, ... of one identical
schema.  A part is written in `RUN/.tmp`, fsynced, renamed into the folder, and the folder is fsynced; it is never
touched again.  So `pandas.read_parquet("RUN/log")` is right at any moment, also after SIGKILL.  A row is *acknowledged*
when its part is published.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from simulator.npu.errors import BadInputError
from tuner.candidate import SCHEMA_VERSION
from tuner.folder.place import Folder, arrow_path


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def part_numbers(folder: Folder) -> list[int]:
    """Numbers of the published parts, ascending; none where there is no folder."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(int(path.stem) for path in found if path.suffix == ".parquet" and path.stem.isdecimal())


def dataset_schema(folder: Folder) -> pa.Schema:
    """The schema of a dataset, from its first part; `BadInputError` where there is none, or one of another version."""
    first = folder / f"{0:08d}.parquet"
    path, filesystem = arrow_path(first)
    try:
        schema = pq.read_schema(path, filesystem=filesystem)
    except (OSError, pa.ArrowInvalid) as error:
        raise BadInputError(f"{first}: not the first part of a dataset: {error}") from None
    check_version(schema, folder)
    return schema


def schema_version(schema: pa.Schema, folder: Folder) -> int:
    """The version that a dataset's schema names; `BadInputError` where it names none."""
    try:
        return int((schema.metadata or {})[b"schema_version"])
    except (KeyError, ValueError):
        raise BadInputError(f"{folder}: schema of no version; this program reads {SCHEMA_VERSION}") from None


def check_version(schema: pa.Schema, folder: Folder) -> None:
    """Refuse any version but today's."""
    version = schema_version(schema, folder)
    if version > SCHEMA_VERSION:
        raise BadInputError(f"{folder}: schema {version}; this program reads up to {SCHEMA_VERSION}")
    if version < SCHEMA_VERSION:
        raise BadInputError(f"{folder}: schema {version}; this program reads {SCHEMA_VERSION}: `tilefarm log migrate RUN --out DIR`")


class DatasetWriter:
    """Tables in, parts out.  One writer per folder (the run's lock sees to it); `folder` and `tmp` on one file system."""

    def __init__(self, folder: Path, schema: pa.Schema, tmp: Path) -> None:
        self.folder, self.schema, self.tmp = folder, schema, tmp
        tmp.mkdir(parents=True, exist_ok=True)
        for left in tmp.glob(f"{folder.name}-*"):  # what a killed writer left: never acknowledged
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        if folder.exists():
            found = dataset_schema(folder)
            if not found.equals(schema, check_metadata=True):
                differ = sorted(set(map(str, found)) ^ set(map(str, schema))) or ["metadata"]
                raise BadInputError(f"{folder}: another schema ({'; '.join(differ[:4])}); a new schema needs a new folder")
            self._next = part_numbers(folder)[-1] + 1
            self.acknowledged = 0
            return
        # the folder appears with its first part inside: an empty folder is not a dataset yet
        staged = tmp / f"{folder.name}-new"
        staged.mkdir()
        self.write(staged / f"{0:08d}.parquet", schema.empty_table())
        fsync_folder(staged)
        staged.rename(folder)
        fsync_folder(folder.parent)
        self._next = 1
        self.acknowledged = 0

    @staticmethod
    def write(path: Path, table: pa.Table) -> None:
        """A durable Parquet file."""
        with path.open("wb") as sink:
            # a dictionary of digests, texts or features has every value once: it is built, found too large, and dropped
            names = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
            # a part has a hundred short columns of numbers, and zstd sets up for each of them what takes longer than to write it
            codecs = {field.name: "zstd" if pa.types.is_string(field.type) else "lz4" for field in table.schema}
            # nobody skips a part of some seconds by the least and the greatest of its columns
            pq.write_table(table, sink, compression=codecs, use_dictionary=names, write_statistics=False)
            sink.flush()
            os.fsync(sink.fileno())

    def publish_table(self, table: pa.Table) -> None:
        """One new part of these rows."""
        table.validate()
        for field in self.schema:
            if not field.nullable and table[field.name].null_count:
                raise ValueError(f"{self.folder.name}: {field.name} must not be null")
        name = f"{self._next:08d}.parquet"
        staged = self.tmp / f"{self.folder.name}-{name}"
        try:
            self.write(staged, table)
            staged.rename(self.folder / name)
            fsync_folder(self.folder)
        except OSError as error:  # the rows stay pending: a later flush may succeed
            raise BadInputError(f"{self.folder / name}: cannot be written: {error.strerror or error}") from None
        self._next += 1
        self.acknowledged += table.num_rows


def write_empty_part(path: Path, schema: pa.Schema, tmp: Path) -> None:
    """A part without rows, where there is none."""
    tmp.mkdir(parents=True, exist_ok=True)
    staged = tmp / f"{path.parent.name}-{path.name}"
    DatasetWriter.write(staged, schema.empty_table())
    staged.rename(path)
    fsync_folder(path.parent)
