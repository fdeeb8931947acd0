"""What measures all problems and writes docs/benchmarks.md; none of it is part of the package."""
