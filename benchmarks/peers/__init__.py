"""Programs that run in the environments of the peers, in which this package is not installed."""
