"""How a person's mistake reads."""

import pytest


def test_a_notebook_shows_one_line_and_no_traceback(capsys):
    interactiveshell = pytest.importorskip("IPython.core.interactiveshell")
    shell = interactiveshell.InteractiveShell()
    shell.history_manager.enabled = False
    shell.run_cell("from minibert import UserError; raise UserError('x.txt: there is no such file')")
    assert capsys.readouterr().out == "UserError: x.txt: there is no such file\n"
