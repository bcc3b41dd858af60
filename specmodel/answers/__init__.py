"""The questions a person asks, one function each: what the command line takes in, what it prints with --json out."""
