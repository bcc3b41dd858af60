"""Laws of tokens, and the rules that test drafts against them."""
