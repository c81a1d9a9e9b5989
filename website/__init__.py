"""The documentation as a site, built offline: ``make docs`` writes build/site.

pages.py      which pages there are, and in which order
links.py      links between files become links between pages
notebooks.py  a notebook becomes a page: its outputs as they are committed, nothing is run
reference.py  the pages of the public names, from their docstrings
sources.py    a page for each source file that something links to
maths.py      formulas become MathML while the site is built, so that no script draws them
explorer.py   pages of `minibert explore`, to try
gather.py     all of these, into build/pages
conf.py       the settings of Sphinx, which makes HTML of build/pages
check.py      the built site has no dead link, and asks for nothing from elsewhere
"""
