"""What is known of machines: datasheets, engine times, measured kernels."""
