"""Diagrams of a graph: the layout holds, and foreign text stays text in every format."""
