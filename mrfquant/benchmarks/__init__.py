"""What `mrfquant bench` measures, a file per subject."""
