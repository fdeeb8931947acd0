"""The explorer: one HTML file with every stage of a product."""
