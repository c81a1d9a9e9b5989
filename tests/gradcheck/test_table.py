"""The table of ``minibert gradcheck``."""

from matrix_product import inputs, product, product_backward

from minibert.gradcheck import Row, function_case, print_table, report


def test_report_prints_a_line_for_each_gradient_and_says_whether_one_is_wrong(device, capsys):
    right = function_case("right", product, product_backward, inputs(device))
    wrong = function_case(
        "wrong", product, lambda *a: product_backward(*a)[::-1], inputs(device, square=True)
    )
    assert report([right]) is True
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "what",
        "right",
        "right",
        "right",
        "3",
        "central",
        "complex",
    ]
    assert all(line.endswith("ok") for line in lines[1:4])
    assert lines[3].split()[1:-2] == "⟨v, J u⟩ = ⟨Jᵀ v, u⟩".split()
    assert report([right, wrong]) is False
    lines = capsys.readouterr().out.splitlines()
    assert sum("WRONG" in line for line in lines) == 3
    assert lines[7] == "6 comparisons, 3 wrong"


def test_a_gradient_that_only_the_complex_step_finds_wrong_is_wrong(device, capsys):
    def backward(dout, cache):
        dx, dw = product_backward(dout, cache)
        return dx, dw * (1.0 + 1e-11)

    assert report([function_case("it", product, backward, inputs(device))]) is False
    lines = capsys.readouterr().out.splitlines()[1:4]
    verdicts = ["WRONG" if "WRONG" in line else line.split()[-1] for line in lines]
    assert verdicts == ["ok", "WRONG", "WRONG"]


def test_absolute_errors_are_not_among_the_largest_relative_ones(capsys):
    rows = [
        (None, Row("it", "x", 1e-15, 1e-13)),
        (None, Row("it", "b", 1e-14, 1e-13, "absolute: it is zero")),
    ]
    assert print_table(rows) is True
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].endswith("ok       absolute: it is zero")
    assert lines[-1] == "complex step: largest relative error 1.0e-15 (bound 1e-13)"
