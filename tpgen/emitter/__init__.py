"""HOW a product is written: hand-written torch.fx graphs."""
