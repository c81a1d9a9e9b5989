"""How far a run has got: a progress bar on a terminal, elsewhere one line every so many steps."""

import shutil

from tqdm import tqdm

_BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}, {remaining} left{postfix}]"


class Progress:
    """Shows the step, the loss (nats), the tokens per second and the time left.

    The bar appears on stderr if that is a terminal; otherwise a line is printed at every ``print_every``-th
    step, or at the next update after it, and at the last one.
    """

    def __init__(self, step: int, steps: int, print_every: int):
        self.steps = steps
        self.print_every = print_every
        self.printed = step  # the step of the last line
        columns, rows = shutil.get_terminal_size()  # 80 × 24 for a terminal that gives its size as 0
        self.bar = tqdm(total=steps, initial=step, disable=None, ncols=columns, nrows=rows, bar_format=_BAR)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def update(self, step: int, loss: float, tokens_per_second: float, seconds_left: float) -> None:
        """Show where the run stands after ``step`` steps."""
        if not self.bar.disable:
            self.bar.set_postfix_str(f"loss {loss:.3f}, {tokens_per_second:,.0f} tokens/s", refresh=False)
            self.bar.update(step - self.bar.n)
        elif step // self.print_every > self.printed // self.print_every or step == self.steps:
            self.printed = step
            print(
                f"step {step:>{len(str(self.steps))}}/{self.steps}  loss {loss:.3f}  "
                f"{tokens_per_second:,.0f} tokens/s  {format_seconds(seconds_left)} left",
                flush=True,
            )

    def note(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        self.bar.write(text)


def format_seconds(seconds: float) -> str:
    """A duration for people: "1:02:03", or "2:03" below an hour."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
