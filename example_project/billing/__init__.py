"""A small billing platform whose background work must not be lost."""
