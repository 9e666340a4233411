"""Place the boxes and edges of a layered graph: their order within a layer and their
coordinates.
"""
