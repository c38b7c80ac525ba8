"""All that the driver, the farm and the store ask of what is outside the program: time, files, threads, actors.

Nothing else in them calls `time`, `threading` or `os`.  So a farm can be run in a world that is simulated, in which disks fill up, writes
tear, actors die and messages come late, from a seed.
"""
