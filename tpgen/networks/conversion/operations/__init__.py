"""Operations that converted networks call: matrix products, splines, pairs of edges."""
