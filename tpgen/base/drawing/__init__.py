"""Drawings as SVG, made without matplotlib and without the rest of tpgen; they read on light pages and on dark ones."""
