"""The HTTP API under ``/api/v1/``: requests become calls of ``operations`` and of the engine.

It needs the extra ``[api]``, and answers only if ``DURABLE_TASKS["API"]`` is true. No other package
imports ``rest_framework``.
"""
