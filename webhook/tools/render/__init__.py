"""How commands write: terminals, tables, JSON and progress."""
