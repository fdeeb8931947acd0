"""Draw SVG pictures."""
