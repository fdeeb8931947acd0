"""Programs of whole networks: traced as graphs, inlined, simplified, inverted."""
