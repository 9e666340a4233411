"""The filesystem transport: no message is lost, duplicated or delivered to another queue, and no
file stops a consumer.
"""

# mypy: disable-error-code="no-untyped-call"

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from celery.exceptions import ImproperlyConfigured
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError

from django_durable_tasks.celery import filesystem
from tests.broker.filesystem_folder import (
    RUBBISH,
    bound,
    drained,
    publish,
    queue_folder,
    size,
    take,
    take_all,
)
from tests.waiting import until

DECLARED_FOR_ONE = {"auto_delete": True, "durable": False}

filesystem.register()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "broker"


@pytest.fixture
def url(folder: Path) -> str:
    return f"durable-filesystem://{folder}"


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with Connection(url) as opened:
        yield opened


# Queues

NAMES = [
    "a",
    "b.a",
    "a.msg",
    "A",
    ".",
    "..",
    "x/y",
    "../a",
    "ä ö",
    "%61",
    "celery@host.celery.pidbox",
    # An upper-case letter is three bytes of the name of a folder, which may have 255.
    "Q" * 200,
    "q" * 200,
    "Q" * 199 + "q",
    "." * 200,
]


def test_queues_with_similar_names_are_separate(connection: Connection) -> None:
    for name in NAMES:
        publish(connection, name, f"for {name}")

    assert {name: take_all(connection, name) for name in NAMES} == {
        name: [f"for {name}"] for name in NAMES
    }


def test_every_queue_stays_within_the_folder(connection: Connection, folder: Path) -> None:
    for name in NAMES:
        publish(connection, name, 1)

    assert len(list((folder / "queues").iterdir())) == len(NAMES)
    assert [path.name for path in folder.iterdir()] == ["queues"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_purge_counts_and_empties_its_own_queue_only(connection: Connection) -> None:
    publish(connection, "a", 1, 2, 3)
    publish(connection, "b.a", 4)

    assert connection.default_channel.queue_purge("a") == 3
    assert (size(connection, "a"), size(connection, "b.a")) == (0, 1)


def test_the_size_counts_messages_and_no_other_files(connection: Connection, folder: Path) -> None:
    publish(connection, "a", *range(3_000))
    for other in ("9-1.msg.7.0.tmp", "9-1.msg.taken", "9-1.msg.undecodable"):
        (queue_folder(folder, "a") / other).write_bytes(b"{")

    assert size(connection, "a") == 3_000


def test_a_passive_declaration_of_an_unknown_queue_is_refused(connection: Connection) -> None:
    with pytest.raises(ChannelError, match="no queue 'nobody'"):
        connection.default_channel.queue_declare("nobody", passive=True)


def test_a_deleted_folder_is_created_again(connection: Connection, folder: Path) -> None:
    publish(connection, "a", 1)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()

    assert take(connection, "a") is None
    publish(connection, "a", 2)
    assert take_all(connection, "a") == [2]


# Order


def test_the_highest_priority_goes_first_and_equals_by_arrival(connection: Connection) -> None:
    for body, priority in enumerate([0, 5, 9, 0, 9, 3, 5]):
        publish(connection, "a", body, priority=priority)

    assert take_all(connection, "a") == [2, 4, 1, 6, 5, 0, 3]


def test_an_urgent_message_does_not_wait_behind_an_older_listing(
    connection: Connection,
) -> None:
    publish(connection, "a", *["calm"] * 500)
    assert take(connection, "a") == "calm"
    publish(connection, "a", "urgent", priority=9)

    until(lambda: take(connection, "a") == "urgent", within=30)

    assert size(connection, "a") > 0


def test_a_requeued_message_keeps_its_priority(connection: Connection) -> None:
    publish(connection, "a", "calm")
    publish(connection, "a", "urgent", priority=9)

    connection.default_channel.basic_get("a").reject(requeue=True)

    with Connection(connection.as_uri()) as other:
        assert take_all(other, "a") == ["urgent", "calm"]


def test_unacknowledged_messages_are_requeued_when_the_connection_is_closed(
    url: str, connection: Connection
) -> None:
    publish(connection, "a", 1)
    with Connection(url) as other:
        other.default_channel.basic_get("a")
        assert size(connection, "a") == 0

    assert take_all(connection, "a") == [1]


# Files that are not messages


def test_files_that_are_not_messages_are_moved_aside_and_logged_once(
    connection: Connection, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(connection, "a", "good")
    for number, content in enumerate(RUBBISH):
        (queue_folder(folder, "a") / f"0-{number:02d}.msg").write_bytes(content)
    (queue_folder(folder, "a") / "0-folder.msg").mkdir()

    with caplog.at_level(logging.ERROR, logger=filesystem.__name__):
        assert take_all(connection, "a") == ["good"]
        assert take_all(connection, "a") == []

    aside = {path.name for path in queue_folder(folder, "a").iterdir()}
    assert aside == {f"0-{n:02d}.msg.undecodable" for n in range(len(RUBBISH))} | {
        "0-folder.msg.undecodable"
    }
    assert len(caplog.records) == len(aside)


def test_files_that_vanish_after_they_were_listed_are_skipped(
    connection: Connection, folder: Path
) -> None:
    publish(connection, "a", *range(10))
    assert take(connection, "a") == 0
    for path in queue_folder(folder, "a").iterdir():
        path.unlink()

    with pytest.raises(Empty):
        connection.default_channel._get("a")


# Prefetch


def test_a_full_prefetch_does_not_block_another_channel(connection: Connection) -> None:
    held: list[Any] = []
    received: list[Any] = []
    publish(connection, "work", 1, 2)
    with (
        listening(
            connection.channel(),
            "work",
            lambda body, message: held.append(message),
            prefetch_count=1,
        ),
        listening(
            connection.channel(),
            "control",
            lambda body, message: received.append(body),
            no_ack=True,
        ),
    ):
        until(lambda: drained(connection) and held, within=30)
        publish(connection, "control", "ping")
        until(lambda: drained(connection) and received, within=30)
        assert len(held) == 1

        held[0].ack()
        until(lambda: drained(connection) and len(held) == 2, within=30)


@contextmanager
def listening(
    channel: Any, name: str, callback: Callable[[Any, Any], None], **options: Any
) -> Iterator[None]:
    queue = Queue(name, exchange=Exchange(""), routing_key=name, no_declare=True)
    with Consumer(channel, [queue], callbacks=[callback], **options):
        yield


# Exchanges


def test_a_topic_is_delivered_to_the_queues_whose_pattern_matches(
    connection: Connection, url: str
) -> None:
    topics = Exchange("topics", type="topic")
    with Connection(url) as other:
        bound(other, topics, "task.#")
        bound(other, topics, "*.failed")
    producer = Producer(connection, exchange=topics)
    for key in ("task.started", "task.failed", "worker.failed", "worker.online"):
        producer.publish(key, routing_key=key)

    assert take_all(connection, "task.#") == ["task.started", "task.failed"]
    assert take_all(connection, "*.failed") == ["task.failed", "worker.failed"]


def test_two_folders_in_one_process_have_separate_bindings(
    connection: Connection, tmp_path: Path
) -> None:
    news = Exchange("news", type="fanout")
    bound(connection, news, "reader")
    with Connection(f"durable-filesystem://{tmp_path / 'other'}") as other:
        bound(other, news, "reader")
        Producer(other, exchange=news).publish("there")

        assert (take_all(connection, "reader"), take_all(other, "reader")) == ([], ["there"])


def test_a_deleted_queue_receives_no_more_copies(
    connection: Connection, folder: Path, url: str
) -> None:
    news = Exchange("news", type="fanout")
    bound(connection, news, "reader").delete()
    with Connection(url) as other:
        Producer(other, exchange=news).publish("hello")

    assert not queue_folder(folder, "reader").exists()


def test_a_binding_emptied_by_a_power_failure_is_written_again_by_its_declarer(
    connection: Connection, folder: Path, url: str
) -> None:
    news = Exchange("news", type="fanout")
    bound(connection, news, "reader")
    for path in folder.rglob("*.binding"):
        path.write_bytes(b"")
    assert Connection(url).channel().get_table("news") == []
    filesystem.Transport._states.clear()

    with Connection(url) as restarted:
        bound(restarted, news, "reader")
        Producer(restarted, exchange=news).publish("hello")

    assert take_all(connection, "reader") == ["hello"]


def test_a_queue_whose_consumer_died_is_dropped_after_a_long_silence(
    connection: Connection, folder: Path, url: str
) -> None:
    news = Exchange("news", type="fanout")
    bound(connection, news, "silent", **DECLARED_FOR_ONE)
    bound(connection, news, "alive", **DECLARED_FOR_ONE)
    bound(connection, news, "lasting")
    os.utime(queue_folder(folder, "silent") / filesystem.ALIVE, (0, 0))

    with Connection(url) as other:
        Producer(other, exchange=news).publish("hello")

    assert not queue_folder(folder, "silent").exists()
    assert (size(connection, "alive"), size(connection, "lasting")) == (1, 1)


def test_a_queue_dropped_while_its_consumer_was_frozen_is_created_again(
    connection: Connection, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "SHOW_LIFE_EVERY", 0.0)
    news = Exchange("news", type="fanout")
    bound(connection, news, "frozen", **DECLARED_FOR_ONE)
    os.utime(queue_folder(folder, "frozen") / filesystem.ALIVE, (0, 0))
    with Connection(connection.as_uri()) as other:
        Producer(other, exchange=news).publish("lost")
        assert not queue_folder(folder, "frozen").exists()

        assert take(connection, "frozen") is None
        Producer(other, exchange=news).publish("current")

    assert take_all(connection, "frozen") == ["current"]


# Configuration


def test_the_folder_may_be_given_in_the_options(folder: Path) -> None:
    with Connection(
        "durable-filesystem://", transport_options={"data_folder": str(folder)}
    ) as connection:
        publish(connection, "a", 1)

    assert len(list(queue_folder(folder, "a").iterdir())) == 1


@pytest.mark.parametrize(
    ("address", "options", "hint"),
    [
        ("durable-filesystem://", {}, "data_folder"),
        ("durable-filesystem:///", {}, "data_folder"),
        ("durable-filesystem://", {"data_folder": "relative"}, "'relative'"),
        ("durable-filesystem://relative/path", {}, "three slashes"),
    ],
)
def test_without_an_absolute_folder_the_error_names_the_setting(
    address: str, options: dict[str, str], hint: str
) -> None:
    with pytest.raises(ImproperlyConfigured, match=hint):
        Connection(address, transport_options=options).connect()


def test_a_folder_that_cannot_be_created_is_a_connection_error_for_kombu(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    unusable = Connection(f"durable-filesystem://{tmp_path}/file/broker")

    with pytest.raises(OperationalError, match="file/broker"):
        unusable.ensure_connection(max_retries=1, interval_start=0)
