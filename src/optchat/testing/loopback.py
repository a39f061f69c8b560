"""
An HTTP server on loopback for a test, in threads of its own.

Decides: how a request is read and recorded, how an answer goes out or breaks off, and that the server ends with its
``with`` block whatever its clients do: no thread and no socket is left.
Refuses to know: any provider's format, and pytest.
"""

from __future__ import annotations

import json
import select
import socket
import socketserver
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any, Final, Self, cast

from attrs import field, frozen

_KEY_HEADERS: Final = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"})
_LOOK_SECONDS: Final = 0.005  # how often a server that waits looks whether it still should
_JOIN_SECONDS: Final = (
    5.0  # connections are shut down first, so threads end at once; a hanging test says more than a leak
)


@frozen
class RecordedRequest:
    """A request as the server got it. Headers have small letters, and those with a key are left out."""

    number: int  # in the order of arrival, from 0
    method: str
    path: str
    headers: Mapping[str, str]
    authorized: bool  # whether it came with a key, which is not kept
    body: Mapping[str, Any] = field(factory=dict[str, Any])  # the JSON object; empty where it was none

    @property
    def system(self) -> str:
        """The text of the system part, however the format carries it."""
        return _text(self.body.get("system") or self.body.get("instructions")) or "\n".join(
            text for role, text in self._said() if role in {"system", "developer"}
        )

    @property
    def messages(self) -> tuple[tuple[str, str], ...]:
        """Role and text of each message that is not the system's."""
        return tuple((role, text) for role, text in self._said() if role not in {"system", "developer"})

    @property
    def text(self) -> str:
        """All that a model would read, the system part first."""
        return "\n".join((self.system, *(text for _role, text in self.messages)))

    def _said(self) -> list[tuple[str, str]]:
        messages: object = self.body.get("messages", self.body.get("input"))
        found: list[tuple[str, str]] = [("user", messages)] if isinstance(messages, str) else []
        for each in cast("list[object]", messages) if isinstance(messages, list) else []:
            if isinstance(each, dict):
                message = cast("dict[str, object]", each)
                found.append((str(message.get("role", "")), _text(message.get("content"))))
        return found


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = cast("list[object]", content) if isinstance(content, list) else []
    return "\n".join(str(cast("dict[str, object]", part).get("text", "")) for part in parts if isinstance(part, dict))


def _json_object(body: bytes) -> Mapping[str, Any]:
    try:
        parsed: object = json.loads(body)
    except ValueError:
        parsed = None
    return cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}


class ClientGone(ConnectionError):
    """Whoever asked hung up, or the server is closing: there is nobody to answer."""


class Exchange:
    """One request and its answer, in a thread of the server's."""

    def __init__(self, handler: _Handler, request: RecordedRequest) -> None:
        self.request = request
        self._handler = handler
        self._streaming = False

    def send(self, body: bytes, *, status: int = 200, content_type: str = "application/json", **headers: str) -> None:
        """Answer with a body; the connection stays open for the next request."""
        self._head(status, content_type, {**headers, "content-length": str(len(body))})
        self._write(body)

    def send_json(self, data: object, *, status: int = 200, **headers: str) -> None:
        self.send(json.dumps(data).encode(), status=status, **headers)

    def send_cut(self, body: bytes, content_type: str = "application/json") -> None:
        """Promise a body, send half of it, and hang up."""
        self._head(200, content_type, {"content-length": str(len(body))})
        self._write(body[: len(body) // 2])
        self.hang_up()

    def stream(self, piece: bytes) -> None:
        """Send a piece of an event stream now; the first begins it."""
        if not self._streaming:
            self._streaming = True
            self._head(200, "text/event-stream", {"transfer-encoding": "chunked", "cache-control": "no-cache"})
        self._write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def end_stream(self) -> None:
        self._write(b"0\r\n\r\n")

    def hang_up(self) -> None:
        """Close the connection where it stands."""
        self._handler.close_connection = True
        _shut(self._handler.connection)

    def wait(self, until: float | threading.Event) -> None:
        """
        Let the client wait: so many seconds, or until an event is set.

        Raises:
            ClientGone: it did not, or the server is closing.
        """
        end = time.monotonic() + until if isinstance(until, (int, float)) else None
        while end is None or time.monotonic() < end:
            if isinstance(until, threading.Event) and until.is_set():
                return
            readable, _, _ = select.select([self._handler.connection], [], [], _LOOK_SECONDS)
            if readable and not self._handler.connection.recv(1, socket.MSG_PEEK):
                raise ClientGone("the client hung up")

    def _head(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        self._handler.send_response(status)
        self._handler.send_header("content-type", content_type)
        for name, value in headers.items():
            self._handler.send_header(name.replace("_", "-"), value)
        self._handler.end_headers()

    def _write(self, data: bytes) -> None:
        self._handler.wfile.write(data)
        self._handler.wfile.flush()


class LoopbackServer:
    """
    A server that answers in threads, for a ``with`` block.

    An exception of :meth:`answer` that is not the client's doing drops the connection, and is raised at the end of the
    block, so that a mistake in a test's own function cannot pass for a provider's failure.
    """

    def __init__(self) -> None:
        self.requests: list[RecordedRequest] = []
        self.abandoned: int = 0  # requests whose client hung up before the answer
        self.errors: list[BaseException] = []
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def answer(self, exchange: Exchange) -> None:
        """Answer one request; several run at once."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        """Where it listens, as the beginning of a URL."""
        if self._server is None:
            raise RuntimeError("the server does not run; use it in a with block")
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def __enter__(self) -> Self:
        self._server = _Server(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_SECONDS * 2,), name="optchat-fake-server", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        server, thread = self._server, self._thread
        assert server is not None
        assert thread is not None
        server.shutdown()  # no connection is accepted any more, and all that were are known
        thread.join(_JOIN_SECONDS)
        server.end_connections()
        server.server_close()
        if kind is None and self.errors:
            raise self.errors[0]

    def handle(self, handler: _Handler, method: str, body: bytes) -> None:
        """One request: record it, then answer it."""
        headers = {name.lower(): value for name, value in handler.headers.items()}
        with self._lock:
            request = RecordedRequest(
                len(self.requests),
                method,
                handler.path,
                {name: value for name, value in headers.items() if name not in _KEY_HEADERS},
                not _KEY_HEADERS.isdisjoint(headers),
                _json_object(body),
            )
            self.requests.append(request)
        try:
            self.answer(Exchange(handler, request))
        except ConnectionError:
            handler.close_connection = True
            with self._lock:
                self.abandoned += 1
        except BaseException as error:  # noqa: BLE001 - it is raised where the test sees it
            handler.close_connection = True
            with self._lock:
                self.errors.append(error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept, as providers keep them
    disable_nagle_algorithm = True  # an event goes out when it is written

    def do_POST(self) -> None:
        self._owner.handle(self, "POST", self.rfile.read(int(self.headers.get("content-length") or 0)))

    def do_GET(self) -> None:
        self._owner.handle(self, "GET", b"")

    @property
    def _owner(self) -> LoopbackServer:
        return cast("_Server", self.server).owner

    def log_message(self, format: str, *args: Any) -> None:  # a test's output is its own
        pass


class _Server(socketserver.TCPServer):
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, owner: LoopbackServer) -> None:
        self.owner = owner
        self._open: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="optchat-fake-connection", daemon=True
        )
        with self._lock:
            self._open[thread] = request
        thread.start()

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # the client's end of it
        finally:
            with self._lock:  # a socket that is closed may not be shut down: its number may be another's by then
                self._open.pop(threading.current_thread(), None)
                self.shutdown_request(request)

    def end_connections(self) -> None:
        with self._lock:
            threads = list(self._open)
            for connection in self._open.values():
                _shut(connection)
        for thread in threads:
            thread.join(_JOIN_SECONDS)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # it was closed from the other end
        connection.shutdown(socket.SHUT_RDWR)
