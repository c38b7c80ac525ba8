"""Run folders: identity, checkpoints, mirrors, migration and repair of logs."""
