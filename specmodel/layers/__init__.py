"""What a layer is made of: matrices, mixers, feed-forward."""
