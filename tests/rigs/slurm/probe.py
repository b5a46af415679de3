"""Answers HTTPS on the addresses that SkyPilot asks to know whether it is online. Arguments: certificate, key."""

from __future__ import annotations

import http.server
import ssl
import sys


class Answer(http.server.BaseHTTPRequestHandler):
    """Says yes to everything."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, format: str, *args: object) -> None:
        """Nothing worth writing."""


def main() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[1], sys.argv[2])
    # The client's own addresses and nothing else can reach it: the network has no way out.
    server = http.server.ThreadingHTTPServer(("0.0.0.0", 443), Answer)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
