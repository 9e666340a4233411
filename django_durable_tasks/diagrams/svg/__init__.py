"""Write a drawing as an SVG document."""
