"""Settings that have another name than they once had: files of earlier versions are read as if they had the new one.
Settings that once were not there: runs of earlier versions are read with what was done then."""

MOVED = {"Trainer.label_smoothing": "CrossEntropy.label_smoothing", "Trainer.temperature": "CrossEntropy.temperature"}
ADDED = {"Experiment.form": "'planes'"}
