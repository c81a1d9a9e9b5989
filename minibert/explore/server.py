"""The page, served to a browser on this machine, with a model behind it that answers.

Only the loopback is listened to. The address has a token that nobody else knows, without which there is no
answer; requests that name another host or come from another page are refused. So no other page that is open
in the browser can ask the model anything, whatever it knows of the port.
"""

import hmac
import json
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import tornado.httpserver
import tornado.ioloop
import tornado.netutil
import tornado.web

from minibert.errors import UserError
from minibert.explore.attributions import NODES
from minibert.explore.page import render
from minibert.explore.session import Session

HOST = "127.0.0.1"
LONGEST_REQUEST = 1 << 20  # bytes


class Guarded(tornado.web.RequestHandler):
    """A handler that answers only to the page whose address has the token."""

    def initialize(self, server: "Server") -> None:
        """Take the server that this belongs to."""
        self.server = server

    def prepare(self) -> None:
        """Refuse a request of anybody else: 403."""
        host, origin = self.request.headers.get("Host"), self.request.headers.get("Origin")
        known = f"{HOST}:{self.server.port}"
        token = self.request.headers.get("X-Token") or self.get_query_argument("token", "")
        if (
            host != known
            or origin not in (None, f"http://{known}")
            or not hmac.compare_digest(token.encode(), self.server.token.encode())
        ):
            self.set_status(403)
            self.finish("minibert: open the address that the command has printed")

    def set_default_headers(self) -> None:
        """Nothing is kept, shown inside another page, or fetched from anywhere else."""
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header(
            "Content-Security-Policy",
            "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
            "img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
        )


class Page(Guarded):
    """GET /: the page, without any sentence."""

    def get(self) -> None:
        """Write it."""
        self.set_header("Content-Type", "text/html; charset=UTF-8")
        self.write(self.server.page.encode("utf-8", "backslashreplace"))  # a folder's name may be anything


class Answer(Guarded):
    """POST /NAME: a method of the session, with a JSON object as its arguments.

    A person's mistake is answered by ``{"error": …}``, and not by a code, which browsers report as a fault.
    """

    def post(self, name: str) -> None:
        """Write the method's answer as JSON."""
        method = self.server.methods.get(name)
        if method is None:
            self.set_status(404)
            self.finish({"error": f"there is no request {name!r}"})
            return
        try:
            asked = json.loads(self.request.body or b"{}")
            if not isinstance(asked, dict):
                raise UserError("expected a JSON object")
            held = self.request.headers.get("X-Pass")
            if name not in ("look", "reset") and held not in (None, str(self.server.passes)):
                raise UserError("another window has asked something since; press “look” to ask again")
            with np.errstate(all="ignore"):  # what is not finite is answered below, or by the method
                answer = method(**asked)
            if name == "look":
                self.server.passes += 1
                answer["pass"] = self.server.passes
        except (UserError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
            answer = {"error": str(error)}
        except (AttributeError, LookupError, OverflowError, RecursionError, ValueError) as error:
            answer = {"error": f"no such request can be answered ({error})"}  # the page sends none
        self.set_header("Content-Type", "application/json")
        try:
            self.finish(json.dumps(answer, allow_nan=False))
        except ValueError:  # browsers cannot read NaN
            self.finish({"error": "some numbers are not finite; undo the steps that have been taken"})


class Server:
    """A session behind a page; ``address`` opens it in a browser of this machine."""

    def __init__(self, session: Session, about: str, text: str, second: str | None = None):
        self.token = secrets.token_urlsafe(24)
        self.passes = 0  # counted, so that a page is told when another one has asked since
        self.methods: dict[str, Callable[..., Any]] = {
            name: getattr(session, name)
            for name in ("look", "tensor", "parameter", "words", "derivative", "step", "reset")
        }
        parameters = [parameter for parameter, _ in session.model.named_parameters()]
        live = {"token": self.token, "text": text, "second": second, "parameters": parameters, "nodes": NODES}
        live["longest"] = LONGEST_REQUEST
        self.page = render({"about": about, "live": live})
        (self._socket,) = tornado.netutil.bind_sockets(0, HOST)
        self.port = self._socket.getsockname()[1]
        self.address = f"http://{HOST}:{self.port}/?token={self.token}"

    def run(self) -> None:
        """Answer until Ctrl-C."""
        application = tornado.web.Application(
            [(r"/", Page, {"server": self}), (r"/(\w+)", Answer, {"server": self})],
            log_function=lambda _: None,
        )
        server = tornado.httpserver.HTTPServer(application, max_body_size=LONGEST_REQUEST)
        server.add_socket(self._socket)
        tornado.ioloop.IOLoop.current().start()
