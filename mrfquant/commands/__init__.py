"""The command line, a module for each subcommand of `mrfquant`: arguments, and errors for people."""
