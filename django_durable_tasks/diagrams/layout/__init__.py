"""Layout of layered diagrams: the order of boxes within a layer, and their coordinates."""
