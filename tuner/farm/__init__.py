"""Jobs handed out, done by workers and committed in their order; what survives a worker, and what a person sees of it."""
