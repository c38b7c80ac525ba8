"""Contention levels: the share of the DDR port left by a background load, its added latency, and the memory and cores granted."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

SHARE_UNIT = 1 << 16  # a DDR share, and a fraction of a bus byte, in integers
SHARES = f"a share of the DDR bandwidth from 1/{SHARE_UNIT}, the least that the clock can tell, to 1"
LevelText = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=64)]  # a file's name and a word on the command line
GRANTED = ("l1_bytes", "shared_bytes", "cores", "l2_bytes")
MAX_LATENCY = 1 << 20  # cycles: a millisecond at 1 GHz, far beyond any queue of a memory controller


def _checked_share(share: float) -> float:
    if not 1 / SHARE_UNIT <= share <= 1:
        raise ValueError(f"accepted: {SHARES}")
    return share


def in_units(share: float) -> int:
    """A share of the DDR bandwidth in 1/65536.  Raises ValueError that names the accepted range."""
    return round(_checked_share(share) * SHARE_UNIT)


def _is_none(value: object) -> bool:
    return value is None


# not written without a grant, so the digest of a machine without grants stays as in earlier versions
Granted = Annotated[int | None, Field(ge=1, exclude_if=_is_none)]


class Level(BaseModel):
    """A contention level.  In a file, a number alone is a share.

    share: share of the DDR bandwidth that the machine can *deliver* (`Ddr.deliverable`: refresh is subtracted before the port is shared).
    latency_cycles: latency of every transfer, added by queueing behind the background load.

    A controller estimates these two; grants are announced to it (`simulator.npu.grant`).  l1_bytes: of every core; shared_bytes: of the
    memory that all cores share; cores: number of cores.  l2_bytes: of the cache that hardware fills: a program takes longer with less, and
    always fits.  None: all that the machine has.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: Annotated[float, AfterValidator(_checked_share)]
    latency_cycles: Annotated[int, Field(ge=0, le=MAX_LATENCY)] = 0
    l1_bytes: Granted = None
    shared_bytes: Granted = None
    cores: Granted = None
    l2_bytes: Granted = None

    @model_validator(mode="before")
    @classmethod
    def _share_alone(cls, value: Any) -> Any:
        if isinstance(value, bool | str) or not isinstance(value, int | float | dict | Level):
            raise ValueError(f"accepted: a share, or a mapping of share and latency_cycles, and of what is granted: {', '.join(GRANTED)}")
        return {"share": value} if isinstance(value, int | float) else value

    @classmethod
    def of_units(cls, share_units: int, latency_cycles: int = 0) -> Level:
        """A level from a share in 1/65536."""
        return cls(share=share_units / SHARE_UNIT, latency_cycles=latency_cycles)

    @property
    def share_units(self) -> int:
        """The share in 1/65536."""
        return in_units(self.share)

    def __str__(self) -> str:
        """The share, the added latency in cycles, and the grants."""
        estimated = f"{self.share:g}" + (f" +{self.latency_cycles}" if self.latency_cycles else "")
        named = (("L1", self.l1_bytes), ("shared", self.shared_bytes), ("cores", self.cores), ("L2", self.l2_bytes))
        return " ".join([estimated, *(f"{name}={value}" for name, value in named if value is not None)])


NO_CONTENTION = Level(share=1)
"""The level without a background load."""
