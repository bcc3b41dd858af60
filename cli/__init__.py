"""How a person asks: commands, tables, pictures."""
