"""Durable tasks that send HTTP requests and messages for other programs."""
