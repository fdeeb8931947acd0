"""Operations of converted networks: matrix products, splines, pairs of edges."""
