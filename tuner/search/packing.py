"""Genes, genomes and populations as arrays.

| array             | dtype          | meaning                                                                       |
|-------------------|----------------|-------------------------------------------------------------------------------|
| `genes`           | int64 [n, S]   | the fields of a gene that are numbers, in their order                         |
| `FIELD`           | U [n]          | a field that is a word                                                        |
| `FIELD`           | int32 [m]      | a field that is a tuple, of all genes, one after the other                    |
| `FIELD.count`     | int32 [n]      | how many of them are each gene's                                              |
| `length`          | int32 [p]      | genes of each genome                                                          |
| `cycles`, `task`  | int64 [p, L], S32 [p] | what a genome took at each level, and the digest of its task           |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.space.gene import Gene, Genome
from tuner.search.population import Individual
from tuner.store.arrays import Arrays

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
