"""Draft methods one by one, joined to what they run."""
