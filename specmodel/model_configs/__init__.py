"""Configs of known models, one file each; ``specmodel.readers.catalogue`` finds them."""
