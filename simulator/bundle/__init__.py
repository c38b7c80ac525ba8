"""A compiled model in parts for a run time without Python: flat binaries, JSON, and the controller in C.

write.write_bundle(read_compiled("out.onnx"), Path("bundle"))
compiled = read.read_bundle(Path("bundle"))             # every part checked against the others; encodes to the same containers

| part                     | content                                                                                 |
|--------------------------|-----------------------------------------------------------------------------------------|
| manifest.json            | size and SHA-256 of every other part (`parts`); written last                              |
| memory.json              | machine, memory map, layouts of inputs and outputs, stream of each level (`memory`)       |
| pieceK/weights.bin       | DDR from block 0 on, the same for all variants                                          |
| pieceK/LEVEL.stream.bin  | a distinct stream, by the first level that runs it: records of core 0, of core 1, ...    |
| controller.json, table.h | the controller's table, as JSON and as C (`c_table`)                                     |
| controller.h, controller.c | the threshold rule                                                                    |
| README.md                | guide for the engineer who integrates the bundle (`readme`)                             |
"""
