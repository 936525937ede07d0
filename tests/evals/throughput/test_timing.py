"""The timing core under a clock that only counts: the order of a round, what a sample is, resets, repetition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from longdecode.evals.throughput.timing import Case, Guard, clock_for, long_enough, time_pair


class ScriptedClock:
    """Gives each block's next time and notes the order of what happened."""

    def __init__(self, times: dict[str, list[float]]):
        self.times = times
        self.log: list[str] = []

    def __call__(self, run: Callable[[], None], watch: Callable[[], None]) -> float:
        run()
        name = self.log[-1]
        watch()
        script = self.times[name]
        return script.pop(0) if len(script) > 1 else script[0]


def block(clock: ScriptedClock, name: str, calls: int = 1) -> Case:
    log = clock.log
    return Case(name, lambda: log.append(name), calls, reset=lambda: log.append(f"reset {name}"))


def test_a_round_is_a_b_b_a_with_a_reset_before_each() -> None:
    clock = ScriptedClock({"A": [1.0], "B": [1.0]})
    time_pair(block(clock, "B"), block(clock, "A"), rounds=2, clock=clock, guard=Guard(None))
    ran = [entry for entry in clock.log if not entry.startswith("reset")]
    assert ran == ["A", "B"] * 2 + ["A", "B", "B", "A"] * 2  # two warm-ups of each come first
    assert all(clock.log[index - 1] == f"reset {entry}" for index, entry in enumerate(clock.log) if entry in "AB")


def test_a_sample_is_the_mean_of_two_runs_per_call_and_warm_up_is_left_out() -> None:
    clock = ScriptedClock({"A": [9, 9, 10, 30, 40, 60], "B": [9, 9, 2, 6, 8, 8]})
    samples = time_pair(block(clock, "B", calls=2), block(clock, "A"), rounds=2, clock=clock, guard=Guard(None))
    assert [(sample.us, sample.reference_us) for sample in samples] == [(2.0, 20.0), (4.0, 50.0)]


def test_without_a_reference_a_round_is_the_subject_twice() -> None:
    clock = ScriptedClock({"B": [7, 7, 1, 3]})
    (sample,) = time_pair(block(clock, "B"), None, rounds=1, clock=clock, guard=Guard(None))
    assert (sample.us, sample.reference_us, sample.disturbed) == (2.0, None, None)


def test_readings_are_taken_while_rounds_run_and_never_in_the_warm_up(fake_monitor: Any) -> None:
    monitor, reads = fake_monitor(), []
    monitor.read = lambda take=monitor.read: reads.append(len(clock.log)) or take()
    clock = ScriptedClock({"A": [1.0], "B": [1.0]})
    time_pair(block(clock, "B"), block(clock, "A"), rounds=3, clock=clock, guard=Guard(monitor))
    assert len(reads) == 12 and min(reads) > 8


def test_a_disturbed_round_marks_its_sample_alone(fake_monitor: Any) -> None:
    clocks = [1980] * 4 + [1500] + [1980] * 7
    clock = ScriptedClock({"A": [1.0], "B": [1.0]})
    guard = Guard(fake_monitor(clocks=clocks))
    samples = time_pair(block(clock, "B"), block(clock, "A"), rounds=3, clock=clock, guard=guard)
    assert [sample.disturbed is None for sample in samples] == [True, False, True]
    assert "1500 of 1980" in str(samples[1].disturbed) and guard.summary()["sm_clock_mhz"] == (1500, 1980)


def test_short_work_is_repeated_and_work_with_a_state_is_not() -> None:
    clock = ScriptedClock({"B": [10.0]})
    plain = Case("B", lambda: clock.log.append("B"), calls=3)
    longer = long_enough(plain, clock, 95.0)
    clock.log.clear()
    longer.run()
    assert (len(clock.log), longer.calls) == (10, 30)
    stateful = block(clock, "B")
    assert long_enough(stateful, clock, 95.0) is stateful and long_enough(plain, clock, 5.0) is plain


def test_the_host_clock_counts_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([5.0, 5.25])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    seen: list[str] = []
    assert clock_for(torch.device("cpu"))(lambda: seen.append("run"), lambda: seen.append("watch")) == 250_000
    assert seen == ["run", "watch"]
