"""What a kernel computes and where: values, before any text."""
