"""The faults, with their numbers in the table of the report."""
