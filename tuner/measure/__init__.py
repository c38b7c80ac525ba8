"""A request in, a measurement out: on the simulator, on a board by way of a runner, or found where another search left it."""
