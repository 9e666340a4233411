"""The only HTTP client of the package. Every request to an outside server passes its guard."""
