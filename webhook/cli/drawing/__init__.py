"""Pictures for people: SVG, and the one self-contained page around it."""
