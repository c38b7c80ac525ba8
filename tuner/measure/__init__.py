"""Measurement of requests: on the simulator, on a board through a runner, or taken from the store of another search."""
