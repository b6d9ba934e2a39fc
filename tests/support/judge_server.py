"""A server that answers like OpenAI's, with what a test has told it to."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Handler = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class JudgeServer:
    base_url: str = ""
    script: list[Handler] = field(default_factory=list)
    """One for each request; the last for all that follow."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Their bodies, with their `authorization`."""
    most_at_once: int = 0
    released: threading.Event = field(default_factory=threading.Event)
    """Ends those that hang."""


def says(text: str | None) -> Handler:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return sends(
        200, json.dumps({"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})
    )


def sends(status: int, body: str, **headers: str) -> Handler:
    def handle(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", str(len(body.encode())))
        request.end_headers()
        request.wfile.write(body.encode())

    return handle


def hangs(server: JudgeServer) -> Handler:
    return lambda _: server.released.wait(60) and None


def closes(request: BaseHTTPRequestHandler) -> None:
    request.close_connection = True


@contextmanager
def judge_server() -> Iterator[JudgeServer]:
    told = JudgeServer()
    lock, inside = threading.Lock(), [0]

    class Requests(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                inside[0] += 1
                told.most_at_once = max(told.most_at_once, inside[0])
                told.requests.append({**body, "path": self.path, "authorization": self.headers["Authorization"]})
                handle = told.script.pop(0) if len(told.script) > 1 else told.script[0]
            try:
                handle(self)
            finally:
                with lock:
                    inside[0] -= 1

        def log_message(self, *_: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    told.base_url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        told.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
