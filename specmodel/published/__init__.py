"""Published runs of speculation, predicted row by row."""
