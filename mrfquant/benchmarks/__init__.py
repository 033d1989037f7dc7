"""The measurements of `mrfquant bench`, a file for each subject."""
