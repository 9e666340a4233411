"""Contains only sitecustomize.py, which Python finds with this folder on its path."""
