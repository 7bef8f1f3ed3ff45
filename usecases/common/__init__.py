"""Code that several use cases share: batches, caches, negatives, placement, text files."""
