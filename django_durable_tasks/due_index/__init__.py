"""The index of tasks that are due soon: in the memory of a scheduler, or in Redis for all
schedulers of a region.
"""
