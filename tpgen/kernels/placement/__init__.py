"""Place sweeps on a target: vectors, tiles, blocks, tables, scratch."""
