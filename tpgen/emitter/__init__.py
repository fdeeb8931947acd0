"""Write products as torch.fx graphs."""
