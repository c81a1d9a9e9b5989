"""The measurements. A part is a module of these functions, its docstring says what it measures:

    add_options(parser)        its own flags
    measure(options)           yields (case, record) for every case, each a dictionary as JSON can hold
    section(cases, folder)     its part of the report in Markdown; writes its pictures into the folder
    aims(cases)                rows (what, at least, measured) of the table of aims

``options`` are the flags that all parts share (``threads``, ``rounds``, ``seconds``, ``quick``) and its own.
"""
