"""What a run leaves on the disk: files that are whole or absent, checkpoints, the run's folder."""
