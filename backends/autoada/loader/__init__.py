"""The wrapped data loader: `AdaDataLoader`, its prefetch queue, lookahead and intent."""
