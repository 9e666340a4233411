"""The house rules as tests: each reads syntax trees, and each is shown a breach that it
must find.
"""
