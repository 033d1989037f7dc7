"""Files of a run: whole or absent, checkpoints, the run's folder."""
