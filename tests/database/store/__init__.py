"""The forms of the functions on the tables."""
