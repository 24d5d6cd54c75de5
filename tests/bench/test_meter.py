"""Windows cover every measured step once, and a busy neighbour does not move the median."""

import time

from bench.meter import QUIET, Window, peak_mb, resident_mb, summarize, time_windows


def test_windows_leave_out_the_warming_and_nothing_else() -> None:
    called: list[int] = []

    def step(number: int) -> int:
        called.append(number)
        time.sleep(0.002)
        return 10**number

    windows = list(time_windows(step, warm=2, steps=5, every=2))
    assert called == list(range(7))
    assert [window.tokens for window in windows] == [1_100, 110_000, 1_000_000]
    assert all(window.seconds >= 0.002 and window.other_cpu >= 0 for window in windows)


def test_only_quiet_windows_count() -> None:
    quiet = [Window(tokens, 1.0, QUIET / 2) for tokens in (90, 100, 120)]
    busy = [Window(tokens, 1.0, 2 * QUIET) for tokens in (10, 20, 30, 40)]
    summary = summarize(busy + quiet)
    assert (summary.rate, summary.slowest, summary.fastest) == (100, 90, 120)
    assert (summary.quiet, summary.windows) == (3, 7)


def test_without_quiet_windows_the_quietest_stand_in_and_it_is_said() -> None:
    summary = summarize([Window(10 * place, 1.0, place / 10) for place in range(1, 9)])
    assert summary.rate == 15
    assert summary.quiet == 0


def test_the_peak_keeps_what_was_given_back() -> None:
    held = bytearray(64 << 20)
    with_it = resident_mb()
    del held
    assert peak_mb() + 1 >= with_it > resident_mb() + 50  # the kernel counts in lumps
