"""Three customers of the platform, which use its scheduler over HTTP, and their servers."""
