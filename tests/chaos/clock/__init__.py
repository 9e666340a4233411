"""Only for its neighbour, which Python finds by this folder on its path."""
