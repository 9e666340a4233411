"""Encryption of arguments and results in the database."""
