"""The explorer: every stage in one HTML file."""
