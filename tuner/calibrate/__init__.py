"""Calibration of a machine file to a board: micro-programs run by a runner, values fitted class by class, each with its accuracy."""
