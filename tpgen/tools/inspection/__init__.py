"""Inspection of modules and plans: every stage as text, its costs, and what torch.compile makes of it."""
