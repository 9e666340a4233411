"""django-ox in its own environment."""
