"""The course from its sources: ``python -m notebooks.make --help``.

convert.py   one source text → the complete notebook, and the one with the exercises still to do
execute.py   runs a notebook from top to bottom
rules.py     what must be true of every notebook
listing.py   the page that lists the exercises
"""
