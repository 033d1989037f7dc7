"""What `python -m mrfquant.bench` measures, a file per subject."""
