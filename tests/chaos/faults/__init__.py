"""The faults, by the number they have in the table of the report."""
