"""The smallest target: a sweep run statement by statement by plain PyTorch, the definition that writers answer to."""
