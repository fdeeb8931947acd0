"""Turn irreps and instructions into frozen plans, without tensors."""
