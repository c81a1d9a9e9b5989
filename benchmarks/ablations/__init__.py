"""What a decision is worth: the same measured with and without it, or done in another way.

A part is a module like those of ``benchmarks.parts``, without aims; its docstring says what it compares:

    add_options(parser)        its own flags
    measure(options)           yields (case, record) for every case, each a dictionary as JSON can hold
    section(cases, folder)     its part of the page in Markdown; writes its pictures into the folder
"""
