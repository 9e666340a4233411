"""Programs that run in the peers' environments, where our package is not installed."""
