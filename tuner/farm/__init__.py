"""Farm: jobs are handed out, executed by workers and committed in order; crashes of workers are handled, and progress is displayed."""
