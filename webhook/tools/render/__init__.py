"""Output of commands: terminals, tables, JSON and progress."""
