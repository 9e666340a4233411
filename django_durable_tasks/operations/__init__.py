"""The operations that change something: one registry for the admin, the command line and an API.

An operation has its title, help text, permission, fields and function here and nowhere else.
"""
