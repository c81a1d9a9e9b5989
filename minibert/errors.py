"""The one kind of exception that means: the input is at fault, and here is what to do about it."""


class UserError(ValueError):
    """A person's mistake, told in one line: what came, what was expected, what to do.

    The commands print the message without a traceback and exit with code 2. Everything else that
    is raised is a defect of ours and keeps its traceback.
    """

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows instead of a traceback (IPython asks for it)."""
        return [f"UserError: {self}"]
