"""Diagrams of a graph: valid layouts, and foreign text is escaped in every format."""
