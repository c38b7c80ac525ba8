"""What lies in files: logs and their schemas, run folders, checkpoints, mirrors; and what travels to them as bytes."""
