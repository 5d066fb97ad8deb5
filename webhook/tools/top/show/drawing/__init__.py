"""Pictures for people: SVG, and the one self-contained page around it.

`elements` makes a page well-formed, `charts` knows what is common to pictures. What is drawn comes
from the commands, each in a `page.py` of its own.
"""
