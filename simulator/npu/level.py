"""A contention level: what the load of others leaves of the DDR port, and how much later it answers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

SHARE_UNIT = 1 << 16  # a DDR share, and a fraction of a bus byte, in integers
SHARES = f"a share of the DDR bandwidth from 1/{SHARE_UNIT}, the least that the clock can tell, to 1"
MAX_LATENCY = 1 << 20  # cycles: a millisecond at 1 GHz, far beyond any queue of a memory controller


def _told_apart(share: float) -> float:
    if not 1 / SHARE_UNIT <= share <= 1:
        raise ValueError(f"accepted: {SHARES}")
    return share


def in_units(share: float) -> int:
    """A share of the DDR bandwidth in 1/65536.  Raises ValueError with what is accepted."""
    return round(_told_apart(share) * SHARE_UNIT)


class Level(BaseModel):
    """share: of the DDR bandwidth that the machine can *deliver* (`Ddr.deliverable`: refresh is paid before anybody has a share).

    latency_cycles: what queueing behind the others adds to the latency of every transfer.  As a file has it, a number alone is a share.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: Annotated[float, AfterValidator(_told_apart)]
    latency_cycles: Annotated[int, Field(ge=0, le=MAX_LATENCY)] = 0

    @model_validator(mode="before")
    @classmethod
    def _share_alone(cls, value: Any) -> Any:
        if isinstance(value, bool | str) or not isinstance(value, int | float | dict | Level):
            raise ValueError("accepted: a share, or a mapping of share and latency_cycles")
        return {"share": value} if isinstance(value, int | float) else value

    @classmethod
    def of_units(cls, share_units: int, latency_cycles: int = 0) -> Level:
        """A share in 1/65536."""
        return cls(share=share_units / SHARE_UNIT, latency_cycles=latency_cycles)

    @property
    def share_units(self) -> int:
        """The share in 1/65536."""
        return in_units(self.share)

    def __str__(self) -> str:
        """The share, and in cycles the latency that comes on top."""
        return f"{self.share:g}" + (f" +{self.latency_cycles}" if self.latency_cycles else "")


ALONE = Level(share=1)
"""Nobody else uses the port."""
