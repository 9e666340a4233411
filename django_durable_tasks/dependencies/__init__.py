"""Edges, joins and references between tasks, their resolution, and the replay of graphs."""
