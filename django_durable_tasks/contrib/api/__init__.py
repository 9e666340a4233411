"""The HTTP API under ``/api/v1/``: requests become calls of ``operations`` and of the engine.

It needs the extra ``[api]``. No other package imports ``rest_framework``.
"""
