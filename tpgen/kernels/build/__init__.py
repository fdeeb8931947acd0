"""From a source to a library in the process: compiler, cache, loading."""
