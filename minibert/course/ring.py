"""Ranks that are threads, each of which can send to the next one only: for exercises about rings."""

import functools
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

PATIENCE = 2.0  # seconds that a rank waits for a message


def in_threads(of_a_rank: Callable) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """A function of the arrays of all ranks, (N, n), that runs ``of_a_rank`` in N threads.

    Each calls of_a_rank(x, rank, N, send, receive): x (n,) is its own array, ``send`` gives an array to the
    next rank, and ``receive`` returns the next one that the rank before has sent. The result is what the
    ranks return, (N, …), and how many numbers each has sent, (N,).

    Raises the first error of a rank, and RuntimeError if one waits in vain for a message.
    """

    @functools.wraps(of_a_rank)
    def on_all(xs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        N = len(xs)
        links: list[queue.Queue] = [queue.Queue() for _ in range(N)]  # links[r] leads to rank r
        results: list[Any] = [None] * N
        sent, errors = np.zeros(N), []

        def work(rank: int) -> None:
            def send(array: np.ndarray) -> None:
                sent[rank] += np.size(array)
                links[(rank + 1) % N].put(np.array(array))

            def receive() -> np.ndarray:
                try:
                    return links[rank].get(timeout=PATIENCE)
                except queue.Empty:
                    raise RuntimeError(f"rank {rank} waits for a message that nobody sends") from None

            try:
                results[rank] = of_a_rank(np.array(xs[rank]), rank, N, send, receive)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(N)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return np.array(results), sent

    return on_all
