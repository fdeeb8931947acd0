"""WITH WHAT a program runs: a GraphModule becomes a callable."""
