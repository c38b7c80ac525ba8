"""A run on disk: its folder, its copies, its checkpoints."""
