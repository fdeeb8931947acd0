"""Operations of converted networks: large matrix products, splines of lengths, nets once for each pair of edges."""
