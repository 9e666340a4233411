"""Hostile answers cost a bounded time and a bounded amount of memory."""

from __future__ import annotations

import gzip
import logging
import socket
import ssl
import subprocess
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from django_durable_tasks.contrib.callbacks.http import CallFailed, CallFailure, Exchange
from django_durable_tasks.targets.addresses import address_policy, parsed_url
from tests.http_servers import WAIT, Behaviour, answer, answering, listening
from tests.unit.targets.sending import a_client, send

MEGABYTE = 1_000_000
KEPT = 10_000
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
_never = Event()


def _send(
    url: str, *, timeout: float = 5.0, body: bytes = b"", tls: ssl.SSLContext | None = None
) -> Exchange:
    policy = address_policy((parsed_url(url).port,), ["127.0.0.0/8"])
    client = a_client(policy, lambda _: ["127.0.0.1"], kept=KEPT, tls=tls)
    return send(client, url, body=body, timeout=timeout)


def _measured(call: Callable[[], object]) -> tuple[float, int]:
    """Return the duration in seconds and the largest additional memory in bytes."""
    tracemalloc.start()
    try:
        began = time.monotonic()
        call()
        return time.monotonic() - began, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _silent(conn: socket.socket, _: bytes) -> None:
    conn.recv(1)


def _dripping(text: bytes) -> Behaviour:
    def drip(conn: socket.socket, _: bytes) -> None:
        for place in range(len(text)):
            conn.sendall(text[place : place + 1])
            _never.wait(0.05)

    return drip


def _endless(first: bytes, piece: bytes) -> Behaviour:
    def send(conn: socket.socket, _: bytes) -> None:
        conn.sendall(first)
        for _number in range(1_000 * MEGABYTE // len(piece)):
            conn.sendall(piece)

    return send


@pytest.mark.parametrize(
    "behaviour",
    [
        _silent,
        _dripping(b"HTTP/1.1 200 OK\r\n" + b"X-Slow: 1\r\n" * 1_000),
        _dripping(b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000),
    ],
    ids=["silent", "slow head", "slow interim answers"],
)
def test_an_answer_that_does_not_come_is_cut_at_the_deadline(behaviour: Behaviour) -> None:
    with listening(behaviour) as server:

        def call() -> None:
            with pytest.raises(CallFailed) as failed:
                _send(server.url(), timeout=1.0)
            assert failed.value.failure is CallFailure.TIMEOUT

        duration, memory = _measured(call)
    assert 0.9 <= duration <= 1.5
    assert memory < 5 * MEGABYTE


def test_a_body_of_one_byte_at_a_time_is_cut_at_the_deadline_and_the_answer_counts() -> None:
    slow = _dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + b"x" * 9_999)
    with listening(slow) as server:
        found: list[Exchange] = []
        duration, memory = _measured(lambda: found.append(_send(server.url(), timeout=3.0)))
    assert duration <= 3.5
    assert (found[0].status, found[0].truncated) == (200, True)
    assert found[0].body.strip(b"x") == b""
    assert memory < 5 * MEGABYTE


@pytest.mark.parametrize(
    ("first", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n", b"x" * 65_536),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10\r\n" + b"x" * 16 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65_536),
    ],
    ids=["1 GB", "chunked", "without a length"],
)
def test_of_a_large_body_only_the_first_bytes_are_read(first: bytes, piece: bytes) -> None:
    with listening(_endless(first, piece)) as server:
        found: list[Exchange] = []
        duration, memory = _measured(lambda: found.append(_send(server.url())))
    assert duration < 5
    assert (found[0].body, found[0].truncated) == (b"x" * KEPT, True)
    assert memory < 5 * MEGABYTE


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_a_compressed_body_is_not_expanded(encoding: str) -> None:
    bomb = gzip.compress(b"\0" * 20 * MEGABYTE)
    with listening(answering(answer(body=bomb, Content_Encoding=encoding))) as server:
        found = _send(server.url())
    assert (found.body, found.truncated) == (bomb[:KEPT], True)


@pytest.mark.parametrize("interim", ["102 Processing", "103 Early Hints", "199 Other"])
def test_interim_answers_are_skipped(interim: str) -> None:
    early = f"HTTP/1.1 {interim}\r\nLink: </a>\r\n\r\n".encode()
    text = INTERIM + early * 3 + INTERIM + answer("201 Created", body=b"ok")
    with listening(answering(text)) as server:
        found = _send(server.url())
    assert (found.status, found.body, found.truncated) == (201, b"ok", False)
    assert "Link" not in dict(found.headers)


def test_a_change_of_the_protocol_is_a_failure() -> None:
    switch = answering(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    with listening(switch) as server, pytest.raises(CallFailed) as failed:
        _send(server.url())
    assert failed.value.failure is CallFailure.PROTOCOL


def test_the_text_of_a_server_and_the_url_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    bad = b"HTTP/1.1 200 OK\r\nX-Good: 1\r\nno colon\r\n\r\n"
    with caplog.at_level(logging.DEBUG), listening(answering(bad)) as server:
        assert _send(server.url("/?key=hunter2")).status == 200
    assert "hunter2" not in caplog.text
    with listening(answering(b"SSH-2.0 banner\r\n\r\n")) as server, pytest.raises(CallFailed) as no:
        _send(server.url())
    assert no.value.detail == "BadStatusLine"


@pytest.mark.parametrize(
    "head",
    [
        b"".join(b"X-%d: 1\r\n" % number for number in range(100_000)),
        b"X-Long: " + b"x" * 1_000_000 + b"\r\n",
        b"X-Short: 1\r\n" * 101,
        INTERIM,
        HINTS,
    ],
    ids=["100k headers", "a long header", "101 headers", "endless 100", "endless 103"],
)
def test_a_large_head_is_refused(head: bytes) -> None:
    endless = (
        (head, head * 1_000)
        if head in (INTERIM, HINTS)
        else (b"HTTP/1.1 200 OK\r\n" + head, b"X: 1\r\n")
    )
    with listening(_endless(*endless)) as server:

        def call() -> None:
            with pytest.raises(CallFailed) as failed:
                _send(server.url())
            assert failed.value.failure is CallFailure.PROTOCOL

        duration, memory = _measured(call)
    assert duration < 5
    assert memory < 5 * MEGABYTE


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\r\n",
        b"hello\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"HTTP/1.1 20",
    ],
    ids=["nothing", "an empty line", "no HTTP", "no status", "no version", "half a line"],
)
def test_an_answer_that_is_not_http_is_a_failure(text: bytes) -> None:
    with listening(lambda conn, _: conn.sendall(text)) as server, pytest.raises(CallFailed) as bad:
        _send(server.url())
    assert bad.value.failure is CallFailure.PROTOCOL


def test_a_redirect_to_the_metadata_service_is_not_followed() -> None:
    redirect = answer("302 Found", Location="http://169.254.169.254/latest/meta-data/")
    with listening(answering(redirect)) as server:
        found = _send(server.url())
        assert (found.status, server.connections) == (302, 1)


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        listening(answering(answer("502 Bad Gateway"))) as proxy,
        listening(answering(answer())) as server,
    ):
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        assert _send(server.url()).status == 200
        assert proxy.connections == 0


def test_an_early_answer_counts_although_the_server_did_not_read_the_body() -> None:
    def early(conn: socket.socket, _: bytes) -> None:
        conn.sendall(answer("413 Content Too Large"))
        conn.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            conn, _ = server.accept()
            with conn:
                conn.recv(100)
                early(conn, b"")
                conn.settimeout(WAIT)
                while conn.recv(65_536):
                    pass

        thread = Thread(target=serve)
        thread.start()
        assert _send(f"http://127.0.0.1:{port}/", body=b"x" * 10 * MEGABYTE).status == 413
        thread.join(WAIT)


def test_a_server_that_reads_nothing_is_left_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        body = b"x" * 50 * MEGABYTE
        began = time.monotonic()
        with pytest.raises(CallFailed) as failed:
            _send(url, timeout=1.0, body=body)
        assert failed.value.failure is CallFailure.TIMEOUT
        assert time.monotonic() - began < 1.5


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for ``server.test``, with its key in the same file."""
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    command = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        "-keyout", str(file), "-out", str(file.with_suffix(".crt")),
        "-subj", "/CN=server.test", "-addext", "subjectAltName=DNS:server.test",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    file.write_text(file.read_text() + file.with_suffix(".crt").read_text())
    return file


@pytest.fixture
def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_the_certificate_is_checked_against_the_name_of_the_url(
    certificate: Path, server_tls: ssl.SSLContext
) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate.with_suffix(".crt")))
    names: list[str | None] = []
    server_tls.sni_callback = lambda _sock, name, _context: names.append(name)
    with listening(answering(answer(body=b"ok")), server_tls) as server:
        good = server.url(scheme="https", host="server.test")
        found = _send(good, tls=trusting)
        assert (found.status, found.body, found.truncated) == (200, b"ok", False)
        assert found.timings.tls is not None
        assert server.headers()["host"] == f"server.test:{server.port}"
        for url, tls in ((server.url(scheme="https", host="other.test"), trusting), (good, None)):
            with pytest.raises(CallFailed) as failed:
                _send(url, tls=tls)
            assert failed.value.failure is CallFailure.TLS
        assert len(server.requests) == 1
    assert names == ["server.test", "other.test", "server.test"]


def test_a_plain_server_and_a_silent_server_are_no_tls_servers() -> None:
    plain = answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with listening(plain) as server, pytest.raises(CallFailed):
        _send(server.url(scheme="https", host="server.test"), timeout=2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://server.test:{silent.getsockname()[1]}/"
        began = time.monotonic()
        with pytest.raises(CallFailed) as failed:
            _send(url, timeout=1.0)
        assert failed.value.failure is CallFailure.TIMEOUT
        assert time.monotonic() - began < 1.5


def test_an_early_answer_over_tls_counts_although_the_body_was_not_read_before(
    certificate: Path, server_tls: ssl.SSLContext
) -> None:
    """The server reads the rest of the body after its answer. A server that closes instead resets
    the connection, and the operating system may then discard the answer.
    """
    trusting = ssl.create_default_context(cafile=str(certificate.with_suffix(".crt")))
    read_before = list[int]()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            conn, _ = server.accept()
            conn.settimeout(WAIT)
            with server_tls.wrap_socket(conn, server_side=True) as tls, suppress(OSError):
                read_before.append(len(tls.recv(100)))
                tls.sendall(answer("413 Content Too Large"))
                while tls.recv(65_536):
                    pass

        thread = Thread(target=serve)
        thread.start()
        url = f"https://server.test:{port}/"
        found = _send(url, body=b"x" * 10 * MEGABYTE, tls=trusting, timeout=WAIT)
        thread.join(WAIT)
    assert (found.status, read_before) == (413, [100])


def test_addresses_of_both_families_are_tried_in_turn() -> None:
    refused = [f"::{number}" for number in range(2, 6)]
    with listening(answering(answer())) as server:
        policy = address_policy((server.port,), ["127.0.0.0/8", "::/96"])
        client = a_client(policy, lambda _: [*refused, "127.0.0.1"])
        assert send(client, f"http://mixed.test:{server.port}/").status == 200
