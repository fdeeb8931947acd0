"""What was made: the text of every stage, and which line serves which instruction."""
