"""A machine file fitted to a board: micro-programs measured through a runner, values found class by class, and how well each is known."""
