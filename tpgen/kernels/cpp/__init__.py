"""C++: the writers of the CPU target."""
