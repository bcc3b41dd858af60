"""Speed of the calculator itself; `make bench`."""
