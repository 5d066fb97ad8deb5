"""What `top` writes: tables, bars, JSON, a page."""
