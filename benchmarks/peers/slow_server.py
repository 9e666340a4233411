"""A server that answers each request with 200 after a pause, and measures how late requests arrive:
``python -m benchmarks.peers.slow_server '{"path": "...", "pause": 0.05}'``.

It writes its port to the file ``path``. For each request it appends a line to ``path.lags`` with the
seconds since its header ``Durable-Scheduled-For``, and to ``path.ids`` a line with its ``webhook-id``.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TextIO

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_DUE, _ID = b"durable-scheduled-for:", b"webhook-id:"


async def _serve(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    pause: float,
    lags: TextIO,
    ids: TextIO,
) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    arrived = time.time()
    for line in head.split(b"\r\n"):
        if line.lower().startswith(_DUE):
            due = datetime.fromisoformat(line.partition(b":")[2].strip().decode())
            lags.write(f"{arrived - due.timestamp()}\n")
            lags.flush()
        if line.lower().startswith(_ID):
            ids.write(f"{line.partition(b':')[2].strip().decode()}\n")
            ids.flush()
    await asyncio.sleep(pause)
    writer.write(_ANSWER)
    await writer.drain()
    writer.close()


async def _main(server_socket: socket.socket, pause: float, lags: TextIO, ids: TextIO) -> None:
    server = await asyncio.start_server(
        lambda reader, writer: _serve(reader, writer, pause, lags, ids),
        sock=server_socket,
        backlog=256,
    )
    await server.serve_forever()


def main(path: str, pause: float) -> None:
    """Serve until the process is terminated."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=256) as listener,
        Path(f"{path}.lags").open("a") as lags,
        Path(f"{path}.ids").open("a") as ids,
    ):
        partial = Path(f"{path}.part")
        partial.write_text(str(listener.getsockname()[1]))
        partial.rename(path)
        asyncio.run(_main(listener, pause, lags, ids))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
