"""Genes, genomes and populations as arrays, and arrays as bytes: what travels between driver and actors, and lies in checkpoints.

| array             | dtype          | meaning                                                                       |
|-------------------|----------------|-------------------------------------------------------------------------------|
| `genes`           | int64 [n, S]   | the fields of a gene that are numbers, in their order                         |
| `FIELD`           | U [n]          | a field that is a word                                                        |
| `FIELD`           | int32 [m]      | a field that is a tuple, of all genes, one after the other                    |
| `FIELD.count`     | int32 [n]      | how many of them are each gene's                                              |
| `length`          | int32 [p]      | genes of each genome                                                          |
| `cycles`, `task`  | int64 [p, L], S32 [p] | what a genome took at each level, and the digest of its task           |

No pickle: what is loaded may come from anywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.space.gene import Gene, Genome
from simulator.npu.errors import BadInputError
from tuner.compressed import compressed, decompressed
from tuner.search.population import Individual

Arrays = dict[str, NDArray[Any]]

_HEAD = 8  # bytes of the header's length

_DEFAULTS = Gene(0, 1)
_TUPLES = [name for name, value in zip(Gene._fields, _DEFAULTS, strict=True) if isinstance(value, tuple)]
_WORDS = [name for name, value in zip(Gene._fields, _DEFAULTS, strict=True) if isinstance(value, str)]
_NUMBERS = [name for name in Gene._fields if name not in (*_TUPLES, *_WORDS)]
_SWITCHES = [isinstance(getattr(_DEFAULTS, name), bool) for name in _NUMBERS]
_ORDER = [(*_NUMBERS, *_WORDS, *_TUPLES).index(name) for name in Gene._fields]


def pack_genes(genes: Sequence[Gene]) -> Arrays:
    """Genes as arrays."""
    at = [Gene._fields.index(name) for name in _NUMBERS]
    out: Arrays = {"genes": np.array([[gene[i] for i in at] for gene in genes], np.int64).reshape(len(genes), len(at))}
    for name in _WORDS:
        out[name] = np.array([getattr(gene, name) for gene in genes], np.str_)
    for name in _TUPLES:
        values: list[tuple[int, ...]] = [getattr(gene, name) for gene in genes]
        out[name] = np.fromiter(chain.from_iterable(values), np.int32)
        out[f"{name}.count"] = np.fromiter(map(len, values), np.int32, len(values))
    return out


def unpack_genes(arrays: Mapping[str, NDArray[Any]], first: int = 0, last: int | None = None) -> list[Gene]:
    """Genes first..last (all of them) of what `pack_genes` made."""
    columns: list[list[Any]] = [
        column.astype(bool).tolist() if switch else column.tolist()
        for column, switch in zip(arrays["genes"][first:last].T, _SWITCHES, strict=True)
    ]
    columns += [arrays[name][first:last].tolist() for name in _WORDS]
    for name in _TUPLES:
        counts = arrays[f"{name}.count"]
        begin = int(counts[:first].sum())
        borders = list(accumulate(counts[first:last].tolist(), initial=begin))
        values = arrays[name][begin : borders[-1]].tolist()
        columns.append([tuple(values[a - begin : b - begin]) for a, b in pairwise(borders)])
    return [Gene._make(row) for row in zip(*(columns[i] for i in _ORDER), strict=True)]


def pack_individuals(individuals: Sequence[Individual], levels: int) -> Arrays:
    """Measured genomes as arrays."""
    out = pack_genes([gene for m in individuals for gene in m.genome])
    out["length"] = np.array([len(m.genome) for m in individuals], np.int32)
    out["cycles"] = np.array([m.cycles for m in individuals], np.int64).reshape(len(individuals), levels)
    out["task"] = np.array([m.task.encode() for m in individuals], "S32")
    return out


def unpack_individuals(arrays: Mapping[str, NDArray[Any]]) -> list[Individual]:
    """All of what `pack_individuals` made."""
    genes = unpack_genes(arrays)
    borders = accumulate(arrays["length"].tolist(), initial=0)
    genomes: list[Genome] = [tuple(genes[a:b]) for a, b in pairwise(borders)]
    rows = zip(genomes, arrays["cycles"], arrays["task"].tolist(), strict=True)
    return [Individual(genome, cycles, task.decode()) for genome, cycles, task in rows]


def unpack_individual(arrays: Mapping[str, NDArray[Any]], at: int) -> Individual:
    """One of them."""
    first = int(arrays["length"][:at].sum())
    genome = tuple(unpack_genes(arrays, first, first + int(arrays["length"][at])))
    return Individual(genome, arrays["cycles"][at].copy(), bytes(arrays["task"][at]).decode())


def prefixed(name: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays under `name/`, to lie beside others."""
    return {f"{name}/{key}": value for key, value in arrays.items()}


def below(name: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """What `prefixed` put there."""
    return {key.removeprefix(f"{name}/"): value for key, value in arrays.items() if key.startswith(f"{name}/")}


def to_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The same arrays give the same bytes: the length of a JSON header, the header, the arrays' own bytes one after the other; compressed.

    Not numpy's npz: twenty small arrays of one set of findings take a millisecond to read there, and everybody reads everybody's.
    """
    whole = {key: np.ascontiguousarray(value) for key, value in arrays.items()}
    head = json.dumps([[key, value.dtype.str, list(value.shape)] for key, value in whole.items()]).encode()
    return compressed(b"".join((len(head).to_bytes(_HEAD, "little"), head, *(value.tobytes() for value in whole.values()))))


def from_bytes(data: bytes) -> Arrays:
    """Raises `BadInputError` where they are not what `to_bytes` made."""
    try:
        data = decompressed(data).to_pybytes()
        at = _HEAD + int.from_bytes(data[:_HEAD], "little")
        found: Arrays = {}
        for key, dtype, shape in json.loads(data[_HEAD:at]):
            if np.dtype(dtype).hasobject:
                raise ValueError(f"{key}: no objects")
            count = math.prod(shape)
            # copies: aligned, writable, and no row keeps the whole message
            found[key] = np.frombuffer(data, dtype, count, at).reshape(shape).copy() if count else np.zeros(shape, dtype)
            at += found[key].nbytes
        if at != len(data):
            raise ValueError(f"{len(data):,} bytes instead of {at:,}")
        return found
    except (ValueError, TypeError, OSError) as error:
        raise BadInputError(f"not arrays of a search: {error}") from None
