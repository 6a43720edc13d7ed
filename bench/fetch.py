#!/usr/bin/env python3
"""The rate of downloading an object from an S3 bucket: by `transfer`, which signs, hashes and caches it, and by curl, which only
writes it to a file. Both from the same service on loopback and into memory (/dev/shm), so that neither waits for a disk.

    fetch.py --build=build --mb=1024

One JSON object. The service sends zeros by sendfile(2) and does not check signatures.
"""
import argparse
import hashlib
import http.server
import json
import os
import pathlib
import subprocess
import tempfile
import threading
import time
import urllib.parse

ETAG = '"0123456789abcdef0123456789abcdef"'


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("ETag", ETAG)
        self.send_header("Content-Length", str(self.server.bytes))
        self.end_headers()

    def do_GET(self):
        if "list-type" in self.path:
            prefix = dict(urllib.parse.parse_qsl(self.path.partition("?")[2]))["prefix"]
            body = (f"<ListBucketResult><Contents><Key>{prefix}</Key><ETag>{ETAG}</ETag><Size>{self.server.bytes}</Size></Contents>"
                    "</ListBucketResult>").encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.do_HEAD()
        self.wfile.flush()
        at = 0
        while at < self.server.bytes:
            at += os.sendfile(self.connection.fileno(), self.server.fd, at, self.server.bytes - at)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build")
    p.add_argument("--mb", type=int, default=1024)
    a = p.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        source = pathlib.Path(folder, "source")
        with open(source, "wb") as file:
            file.truncate(a.mb << 20)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.bytes, server.fd, server.daemon_threads = a.mb << 20, os.open(source, os.O_RDONLY), True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        env = dict(os.environ, AWS_ACCESS_KEY_ID="id", AWS_SECRET_ACCESS_KEY="secret")
        taken = {}
        for name, command in (("curl", ["curl", "-sS", "-o", f"{folder}/by-curl", f"{endpoint}/bucket/object"]),
                              ("transfer", [f"{a.build}/transfer", "get", "--cache", f"{folder}/cache", "--endpoint", endpoint,
                                            "--log-level", "0", "--quiet", "--", "s3://bucket/object"])):
            answer = os.pipe()
            begin = time.monotonic()
            # transfer reports its downloads on descriptor 3
            subprocess.run(["sh", "-c", f'exec "$@" 3>&{answer[1]}', "sh", *command], env=env, check=True, timeout=300,
                           pass_fds=[answer[1]])
            taken[name] = time.monotonic() - begin
            os.close(answer[1])
            os.close(answer[0])
        copy = next(pathlib.Path(folder, "cache").glob("*/object"))
        says = json.loads(copy.with_name("object.entrain").read_text())
        with open(source, "rb") as file:
            assert says["sha256"] == hashlib.file_digest(file, "sha256").hexdigest(), "it is hashed"
        server.shutdown()
        print(json.dumps(dict(bench="fetch", mb=a.mb, **{f"{name}_mb_s": a.mb / s for name, s in taken.items()})))


if __name__ == "__main__":
    main()
