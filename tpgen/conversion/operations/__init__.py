"""Operations that only converted networks call: layers by species, large products, nets of edges once for each pair."""
