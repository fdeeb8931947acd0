"""Operations of converted networks alone: large products, splines of lengths, nets of edges once for each pair."""
