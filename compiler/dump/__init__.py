"""What every stage of the compiler has made, as text: a line per thing, so that two of them can be compared with `diff`.

| stage      | module     | shows                                                                                   |
|------------|------------|-----------------------------------------------------------------------------------------|
| `graph`    | `graph`    | operators with shapes and attributes, lowered and rewritten; weights by shape and digest  |
| `unit`     | `unit`     | storages, tensors and constants with their DDR addresses; operators with their signatures |
| `plan`     | `plan`     | segments: blocks, strips, window, cores; of every operator tiling and halo                |
| `segments` | `segments` | shares of the cores: rows of every block, what stays in L1, buffers in L1 and UB          |
| `records`  | `records`  | the instructions of every core, as `simulator.npu.asm` prints them                        |

Each has a function from its stage's result to lines without ends, since a name may hold one.  An address is in blocks of 32 bytes and
looks like those of records, `L1[640]`; ranges are half-open, `0:5`.
"""

STAGES = ("graph", "unit", "plan", "segments", "records")
