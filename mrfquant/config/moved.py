"""Settings that have another name than they once had: files of earlier versions are read as if they had the new one."""

MOVED = {"Trainer.label_smoothing": "CrossEntropy.label_smoothing", "Trainer.temperature": "CrossEntropy.temperature"}
