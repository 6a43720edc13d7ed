"""An object storage service on loopback that trusts no client: it verifies each signature with the services' own Python
libraries, botocore and oss2, and requires that paths are encoded as theirs are. A test sets up what goes wrong.

    with Server("s3") as server:
        server.objects["data/train.bin"] = b".."
        run(f"--data-endpoint={server.endpoint}", ..)
"""
import email.utils
import hashlib
import http.server
import socket
import ssl
import threading
import time
import types
import urllib.parse
import xml.etree.ElementTree
from xml.sax.saxutils import escape

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import botocore.utils
import oss2
import oss2.credentials

ID, SECRET, TOKEN = "AKIDENTRAINTEST", "secret/of+this=test0123456789abcdefghij", "token-that-ends-soon-abcdefghijk"
BUCKET, REGION = "entrain-test", "eu-test-1"
CUT = -1


def etag_of(data):
    return f'"{hashlib.md5(data).hexdigest()}"'


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def log_message(self, *_):
        pass

    def answer(self, code, body=b"", **headers):
        if isinstance(body, str):
            body = body.encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def fail(self, code, name, message="", more="", **headers):
        self.server.of.failures.append(name)
        self.answer(code, f"<?xml version='1.0'?><Error><Code>{name}</Code><Message>{escape(message)}</Message>{more}</Error>",
                    Content_Type="application/xml", **headers)

    # ---- whether the signature is right ----

    def signature_of_s3(self, given):
        names = given["SignedHeaders"].split(";")
        assert {n for n in map(str.lower, self.headers) if n.startswith("x-amz-")} | {"host"} == set(names), "all are signed"
        request = botocore.awsrequest.AWSRequest(self.command, f"http://{self.headers['Host']}{self.path}",
                                                 {n: self.headers[n] for n in names if n != "host"})
        request.context["timestamp"] = self.headers["x-amz-date"]
        of = self.server.of
        auth = botocore.auth.S3SigV4Auth(botocore.credentials.Credentials(ID, SECRET, of.token), "s3", REGION)
        return auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)

    def signature_of_oss(self, key):
        of = self.server.of
        query = urllib.parse.urlsplit(self.path).query
        request = types.SimpleNamespace(method=self.command, headers=dict(self.headers), region=REGION, product="oss",
                                        cloudbox_id=None, params=dict(urllib.parse.parse_qsl(query, keep_blank_values=True)))
        request.headers = {n.lower(): v for n, v in request.headers.items()}
        provider = oss2.credentials.StaticCredentialsProvider(ID, SECRET, of.token)
        auth = oss2.ProviderAuthV4(provider)
        return auth._ProviderAuthV4__make_signature(request, BUCKET, key, None, provider.get_credentials(),
                                                    self.headers["x-oss-date"])

    def is_let_in(self, path, key):
        of = self.server.of
        if of.is_open:
            assert not any(n.lower().startswith(("authorization", "x-amz-", "x-oss-")) for n in self.headers), "nothing is signed"
            return True
        words = self.headers.get("Authorization", " ").split(" ", 1)
        given = dict(part.strip().split("=", 1) for part in words[1].split(",") if "=" in part)
        token = self.headers.get("x-amz-security-token" if of.kind == "s3" else "x-oss-security-token")
        if words[0] != ("AWS4-HMAC-SHA256" if of.kind == "s3" else "OSS4-HMAC-SHA256"):
            self.fail(403, "AccessDenied", "no signature")
        elif not given["Credential"].startswith(ID + "/"):
            self.fail(403, "InvalidAccessKeyId", "no such key")
        elif token != of.token:
            self.fail(403, "ExpiredToken" if token else "InvalidToken", "the token has ended")
        elif path != "/" + BUCKET + "/" + botocore.utils.percent_encode(key, safe="/~"):
            self.fail(400, "InvalidURI", "it is encoded in another way")
        elif (self.signature_of_s3(given) if of.kind == "s3" else self.signature_of_oss(key)) != given["Signature"]:
            self.fail(403, "SignatureDoesNotMatch", "the signature is another")
        else:
            return True
        return False

    # ---- requests ----

    def begin(self):
        """(path, key, query), or None where it has been answered."""
        of = self.server.of
        path, _, query = self.path.partition("?")
        of.requests.append((self.command, self.path, dict(self.headers)))
        if of.instead:
            code, headers = of.instead.pop(0)
            if code == CUT:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return None
            if code:
                self.fail(code, {403: "AccessDenied", 503: "SlowDown"}.get(code, "InternalError"), **headers)
                return None
        if of.skewed:
            date = email.utils.formatdate(time.time() + 1200, usegmt=True)
            self.send_response_only(403)
            body = b"<Error><Code>RequestTimeTooSkewed</Code><Message>the clocks differ</Message></Error>"
            self.send_header("Date", date)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return None
        if not path.startswith(f"/{BUCKET}/"):
            self.fail(404, "NoSuchBucket", "there is none")
            return None
        key = urllib.parse.unquote(path[len(BUCKET) + 2:])
        query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        return (key, query) if self.is_let_in(path, key) else None

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        asked = self.begin()
        if asked is None:
            return
        key, query = asked
        if key == "" and self.server.of.may_not_list:
            self.fail(403, "AccessDenied", "s3:ListBucket is not allowed")
        elif key not in self.server.of.objects and self.server.of.may_not_list:
            self.fail(403, "AccessDenied", "whether it is there is not told")
        elif key == "":
            self.list(query)
        elif key not in self.server.of.objects:
            self.fail(404, "NoSuchKey", "there is none")
        else:
            self.give(key)

    def list(self, query):
        of = self.server.of
        assert query["list-type"] == "2" and query["encoding-type"] == "url"
        if of.page is not None:
            self.answer(200, of.page, Content_Type="application/xml")
            return
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        keys = sorted(k for k in of.objects if k.startswith(prefix) and k > query.get("continuation-token", ""))
        deeper = sorted({k[:k.index("/", len(prefix)) + 1] for k in keys if delimiter and "/" in k[len(prefix):]})
        keys = [k for k in keys if not (delimiter and "/" in k[len(prefix):])]
        page, more = keys[:of.page_size], len(keys) > of.page_size
        quote = urllib.parse.quote if of.kind == "oss" else urllib.parse.quote_plus
        body = "".join(f"<Contents><Key>{quote(k)}</Key><ETag>{escape(of.listed_etag(k))}</ETag>"
                       f"<Size>{len(of.objects[k]) + of.size_off}</Size></Contents>" for k in page)
        token = quote(page[-1]) if more and of.kind == "oss" else escape(page[-1]) if more else ""
        body += "".join(f"<CommonPrefixes><Prefix>{quote(k)}</Prefix></CommonPrefixes>" for k in deeper)
        token = f"<NextContinuationToken>{token}</NextContinuationToken>" if more else ""
        self.answer(200, f"<?xml version='1.0' encoding='UTF-8'?><ListBucketResult><Name>{BUCKET}</Name>"
                         f"<EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated>{token}{body}"
                         "</ListBucketResult>", Content_Type="application/xml")

    def give(self, key):
        of = self.server.of
        data = of.objects[key]
        etag = of.given_etag.format(of.etag(key))
        begin, asked = 0, self.headers.get("Range")
        if asked and of.knows_ranges:
            begin = int(asked[len("bytes="):].rstrip("-"))
            if begin >= len(data):
                self.fail(416, "InvalidRange", "it is shorter")
                return
        self.send_response(206 if begin else 200)
        self.send_header("ETag", etag)
        if self.command != "HEAD" or of.tells_size:
            self.send_header("Content-Length", str(len(data) - begin))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        end = len(data)
        if of.cuts:
            end = min(end, begin + of.cuts.pop(0))
        if of.on_get is not None:
            of.on_get(key)
        self.wfile.write(memoryview(data)[begin:end])
        if end < len(data):
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def begin_with_body(self):
        """(key, query, body), or None where it has been answered, or its sender was killed."""
        asked = self.begin()
        length = int(self.headers.get("Content-Length", 0))
        data = self.rfile.read(length)
        if asked is None or len(data) < length:
            return None
        if self.server.of.kind == "s3" and self.headers["x-amz-content-sha256"] != hashlib.sha256(data).hexdigest():
            self.fail(400, "XAmzContentSHA256Mismatch", "the body is another")
            return None
        return *asked, data

    def do_PUT(self):
        asked, of = self.begin_with_body(), self.server.of
        if asked is None:
            return
        key, query, data = asked
        of.takes_puts.wait(600)
        time.sleep(of.put_seconds)
        if of.refuses_puts:
            self.fail(403, "AccessDenied", "it is for reading")
        elif not query:
            of.objects[key] = data
            of.etags.pop(key, None)
            self.answer(200, ETag=etag_of(data))
        elif self.has_upload(key, query):
            of.uploads[query["uploadId"]][1][int(query["partNumber"])] = data
            if of.on_part is not None:
                of.on_part(int(query["partNumber"]))
            self.answer(200, **({"ETag": etag_of(data)} if of.tells_etag else {}))

    # ---- uploads in parts ----

    def has_upload(self, key, query):
        if self.server.of.uploads.get(query["uploadId"], (None,))[0] == key:
            return True
        self.fail(404, "NoSuchUpload", "there is none")
        return False

    def do_POST(self):
        asked, of = self.begin_with_body(), self.server.of
        if asked is None:
            return
        key, query, data = asked
        if of.refuses_puts:
            self.fail(403, "AccessDenied", "it is for reading")
        elif query == {"uploads": ""} and data == b"":
            of.begun += 1
            name = f"up/load+{of.begun}=&%"  # as odd as an id may be
            of.uploads[name] = key, {}
            self.answer(200, f"<?xml version='1.0'?><InitiateMultipartUploadResult><Key>{escape(key)}</Key><UploadId>{escape(name)}"
                             "</UploadId></InitiateMultipartUploadResult>" if of.page is None else of.page)
        elif self.has_upload(key, query):
            self.complete(key, query["uploadId"], data)

    def complete(self, key, name, data):
        """As the next of of.completes says: (the first action, the body of the answer; None: the connection is broken)."""
        of = self.server.of
        parts = [(int(p.find("PartNumber").text), p.find("ETag").text) for p in xml.etree.ElementTree.fromstring(data)]
        kept = of.uploads[name][1]
        done, answer = of.completes.pop(0) if of.completes else ("join", "<CompleteMultipartUploadResult/>")
        if parts != sorted((number, etag_of(part)) for number, part in kept.items()):
            answer = error_of("InvalidPart")
        elif done == "join":
            of.objects[key] = b"".join(kept[number] for number in sorted(kept))[:-of.joins_less or None]
            of.etags[key] = f'"{hashlib.md5(data).hexdigest()}-{len(parts)}"'
        if done in ("join", "forget"):
            del of.uploads[name]
        if answer is None:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        else:
            self.answer(200, "  \n " + answer)  # blanks have kept the connection

    def do_DELETE(self):
        asked, of = self.begin(), self.server.of
        if asked is not None and self.has_upload(*asked):
            del of.uploads[asked[1]["uploadId"]]
            self.answer(204)


def error_of(code):
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>of it</Message></Error>"


class Server:
    def __init__(self, kind):
        self.kind, self.objects, self.token = kind, {}, None
        self.requests, self.failures = [], []  # the requests, and the errors that were sent
        self.instead = []  # (code, headers) for the next requests; code 0: as usual, CUT: the connection ends
        self.skewed, self.knows_ranges, self.page, self.page_size, self.size_off = False, True, None, 1000, 0
        self.cuts = []  # the next bodies end after this many bytes
        self.on_get, self.other_etag, self.refuses_puts = None, None, False
        self.takes_puts, self.put_seconds = threading.Event(), 0  # else a PUT is never answered; the seconds that it takes
        self.takes_puts.set()
        self.uploads, self.etags, self.begun = {}, {}, 0  # {id: (key, {number: bytes})}; of objects that came in parts; their number
        self.completes, self.joins_less, self.on_part = [], 0, None  # the ends of uploads; bytes that are lost there
        self.is_open, self.may_not_list = False, False  # to all, without a signature; objects may be read only by their names
        self.tells_size = self.tells_etag = True  # in the answer to a HEAD; of a part
        self.given_etag = "{}"  # the form of an ETag in the answer to a GET: "W/{}" behind a proxy
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads, self.http.of = True, self
        self.endpoint = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.url = f"s3://{BUCKET}" if kind == "s3" else f"oss://{BUCKET}.oss-{REGION}.example.com"

    def speak_tls(self, certificate, key):
        """From now on, by https."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.endpoint = self.endpoint.replace("http:", "https:")

    def etag(self, key):
        return self.etags.get(key) or etag_of(self.objects[key])

    def listed_etag(self, key):
        return self.other_etag or self.etag(key)

    def gets(self, key):
        return sum(method == "GET" and urllib.parse.unquote(path) == f"/{BUCKET}/{key}" for method, path, _ in self.requests)

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()
