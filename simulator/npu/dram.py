"""DRAM timings as data, and the share of the pin rate that they leave.

A machine whose `ddr.rate` is that of the pins names a row of `DRAMS`.  From its timings follow, each in one closed form:

| parameter        | meaning                                                                                                |
|------------------|--------------------------------------------------------------------------------------------------------|
| `delivered`      | 1 - tRFC / tREFI: the share of time in which no refresh of all banks stops the channel                  |
| `activate_bytes` | bytes that the pins could move between two row openings of a channel: the least cost of a row            |
| `turned`         | share that remains if reads and writes alternate: a batch of each over the batches and both turn-arounds |
| `bank_wait_ns`   | mean wait of a first access for its bank, if one other transfer is in flight                             |

The time between two rows is the largest of tRRD, a quarter of tFAW, and tRC (W + N - 1) / (W N): a bank opens a row every tRC, and W
requests that fall on N banks by chance keep N W / (W + N - 1) of them busy (a closed network of N equal servers and W customers: Buzen,
"Computational algorithms for closed queueing networks with exponential servers", CACM 16/9, 1973; Lazowska et al., Quantitative System
Performance, ch. 6).  Neither the order of addresses nor a bank conflict of one stride is in it: controllers permute bank bits (Zhang,
Zhu and Zhang, MICRO 2000), and an absolute address must not matter, or equal segments would cost differently.

Rows of a long run are opened while the previous row is read, so only runs shorter than `activate_bytes` are affected.

Timings are of the JEDEC standards (JESD79-4 DDR4, JESD209-4 LPDDR4, JESD209-5 LPDDR5, JESD235 HBM2) at the speed that the row's comment
names, as public configurations have them: DRAMsim3's `DDR4_8Gb_x8_3200.ini` and `HBM2_8Gb_x128.ini`, Ramulator 2's `LPDDR5.cpp`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

IN_FLIGHT = 6  # requests of one DMA that a channel's controller sees: some 32 over the five x16 channels of 64 GB/s.  Assumption
BATCH_BYTES = 1024  # read, then written, before the bus turns: 16 bursts of 64 bytes, half of a write queue of 32 as simulators have it


@dataclass(frozen=True)
class Dram:
    """Timings of one channel.  channel_gbps: bytes per ns at the pins.  burst_bytes: size of one access.  page_bytes: size of an open row.

    Times in ns.  t_rtw_ns: from the last data of a read to the first of a write.  t_wtr_ns: from a write to a read.
    """

    channel_gbps: float
    burst_bytes: int
    page_bytes: int
    banks: int
    t_rc_ns: float
    t_rrd_ns: float
    t_faw_ns: float
    t_rfc_ns: float
    t_refi_ns: float
    t_rtw_ns: float
    t_wtr_ns: float

    @property
    def delivered(self) -> Fraction:
        """The fraction of the pins' rate that one long run gets; in (0, 1)."""
        return 1 - _exact(self.t_rfc_ns) / _exact(self.t_refi_ns)

    def activate_ns(self, in_flight: int = IN_FLIGHT) -> Fraction:
        """Time between two rows that a channel opens, with `in_flight` requests to choose from."""
        by_chance = Fraction(in_flight + self.banks - 1, in_flight * self.banks)
        return max(_exact(self.t_rrd_ns), _exact(self.t_faw_ns) / 4, _exact(self.t_rc_ns) * by_chance)

    @property
    def activate_bytes(self) -> int:
        """`activate_ns` in bytes of the pins, rounded up."""
        return math.ceil(self.activate_ns() * _exact(self.channel_gbps))

    @property
    def turned(self) -> Fraction:
        """The fraction of `delivered` that is left where reads and writes alternate; in (0, 1)."""
        batches = 2 * BATCH_BYTES / _exact(self.channel_gbps)
        return batches / (batches + _exact(self.t_rtw_ns) + _exact(self.t_wtr_ns))

    @property
    def bank_wait_ns(self) -> Fraction:
        """Mean wait for a bank that one other transfer in flight may hold: half a row cycle over the number of banks.

        (The mean residual of a constant service time: Kleinrock, Queueing Systems I, 5.2.)
        """
        return _exact(self.t_rc_ns) / (2 * self.banks)


def _exact(value: float) -> Fraction:
    """The decimal number as written."""
    return Fraction(str(value))


DRAMS: dict[str, Dram] = {
    # DDR4-3200AA, 8 Gb x8, a channel of 64 bits.  Turn-arounds: 2 tCK; tWTR_L + CL
    "ddr4": Dram(25.6, 64, 8192, 16, 46.25, 2.5, 21.25, 350, 7800, 1.25, 21.25),
    # HBM2 at 2 Gb/s, 8 Gb, a pseudo channel of 64 bits.  Turn-arounds: 2 tCK; tWTR_L + CL
    "hbm2": Dram(16, 32, 1024, 16, 48, 4, 30, 260, 3900, 2, 22),
    # LPDDR4-4266, 8 Gb per channel of 16 bits.  Turn-arounds: tDQSCK and preamble; tWTR + RL + tDQSCK
    "lpddr4": Dram(8.532, 32, 2048, 8, 60, 10, 40, 280, 3904, 5, 29),
    # LPDDR5-6400, 8 Gb per channel of 16 bits, 4 groups of 4 banks.  Turn-arounds: WCK2DQO and preamble; tWTR_L + RL + WCK2DQO
    "lpddr5": Dram(12.8, 32, 2048, 16, 60, 5, 20, 210, 3906, 4, 38),
}
