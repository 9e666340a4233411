"""The migrations of notifications."""
