"""Operations of converted networks."""
