"""Names beyond the limit are summed, so that generated names cannot fill a scrape."""

from django_durable_tasks.contrib.metrics.gauges import QueueGauge, busiest_queues, fullest_limits
from django_durable_tasks.contrib.metrics.series import OTHER


def test_the_queues_with_few_tasks_are_summed_as_other() -> None:
    queues = {f"q{number}": QueueGauge(number, 1, float(number), 1, 1) for number in range(5)}
    found = busiest_queues(queues, 2)
    assert set(found) == {"q4", "q3", OTHER}
    assert found[OTHER] == QueueGauge(0 + 1 + 2, 3, 2.0, 3, 3)
    assert busiest_queues(queues, 5) == queues


def test_the_limits_that_are_used_most_are_kept() -> None:
    limits = {"a": (1, 10), "b": (9, 10), "c": (0, 0), "d": (5, 5)}
    assert fullest_limits(limits, 2) == {"b": (9, 10), "d": (5, 5)}
