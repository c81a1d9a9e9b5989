"""How a person's mistake reads."""

import math

import numpy as np
import pytest

from minibert.errors import UserError, check_count


@pytest.mark.parametrize("value", [0, 1.5, -1, math.inf, math.nan, "5", None, np.int64(0)])
def test_a_count_is_a_whole_number_of_at_least_1(value):
    check_count("limit", 1)
    check_count("limit", 2.0)
    check_count("limit", np.int64(3))
    with pytest.raises(UserError, match=r"limit must be a whole number of at least 1, got"):
        check_count("limit", value)


def test_a_notebook_shows_one_line_and_no_traceback(capsys):
    interactiveshell = pytest.importorskip("IPython.core.interactiveshell")
    shell = interactiveshell.InteractiveShell()
    shell.history_manager.enabled = False
    shell.run_cell("from minibert import UserError; raise UserError('x.txt: there is no such file')")
    assert capsys.readouterr().out == "UserError: x.txt: there is no such file\n"
