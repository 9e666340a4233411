"""Nodes, the lease of the leader, queues, and the state of the installation."""
