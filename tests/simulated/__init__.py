"""The farm under simulation: a driver, its disk and its actors in a world that is made of a seed.

Everything that the driver asks of what is outside the program goes through `tuner.platform`.  Here that is one event queue in virtual time:
disks fill up and forget what was not fsynced, actors die and answer late, threads interleave, the driver is killed and started again.
However it went, the run must end as the undisturbed one did.  `python -m tests.simulated --seed K` replays a seed.
"""
