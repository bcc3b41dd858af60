"""Times of single kernels: formulas, fitted constants, the tables they are fitted to and validated against."""
