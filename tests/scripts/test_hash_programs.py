"""Digests of what is compiled: the same twice, others for other genomes."""

from __future__ import annotations

from scripts.hash_programs import genes_digest, programs_digest
from scripts.studies import network


def test_digests_are_of_the_genomes() -> None:
    unit = network("squeezenet", "edge")
    first, again, other = (programs_digest(unit, 2, seed) for seed in (0, 0, 1))
    assert first == again != other
    assert genes_digest(unit, 10, 0) == genes_digest(unit, 10, 0) != genes_digest(unit, 10, 1)
