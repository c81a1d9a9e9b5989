import io

from minibert.train.progress import Progress, format_seconds


def test_without_a_terminal_a_line_is_printed_now_and_then(capsys):
    with Progress(step=0, steps=250, print_every=100) as progress:
        for step in range(1, 251):
            progress.update(step, loss=1.0 / step, tokens_per_second=12345.6, seconds_left=61.0)
        progress.note("a remark")
    assert capsys.readouterr().out.splitlines() == [
        "step 100/250  loss 0.010  12,346 tokens/s  1:01 left",
        "step 200/250  loss 0.005  12,346 tokens/s  1:01 left",
        "step 250/250  loss 0.004  12,346 tokens/s  1:01 left",
        "a remark",
    ]


def test_a_line_is_not_lost_because_the_updates_come_at_other_steps(capsys):
    with Progress(step=0, steps=60, print_every=10) as progress:
        for step in (*range(7, 60, 7), 60):
            progress.update(step, loss=1.0, tokens_per_second=1.0, seconds_left=1.0)
    told = [line.split("/")[0] for line in capsys.readouterr().out.splitlines()]
    assert told == ["step 14", "step 21", "step 35", "step 42", "step 56", "step 60"]


def test_on_a_terminal_there_is_a_bar_and_no_line(capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress(step=50, steps=100, print_every=1) as progress:
        progress.update(100, loss=2.5, tokens_per_second=1000.0, seconds_left=0.0)
    assert capsys.readouterr().out == ""
    last = terminal.getvalue().split("\r")[-1]
    assert "100%" in last and "100/100" in last and "loss 2.500, 1,000 tokens/s" in last


def test_seconds_for_people():
    assert [format_seconds(s) for s in (0.4, 59.6, 3599, 3600, 7325)] == [
        "0:00",
        "1:00",
        "59:59",
        "1:00:00",
        "2:02:05",
    ]
