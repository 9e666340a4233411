"""The operations that change data: one registry for the admin, the command line and an API.

The title, help text, permission, fields and function of an operation are defined only here.
"""
