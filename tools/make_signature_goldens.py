#!/usr/bin/env python3
"""Makes tests/goldens/signatures.json: requests signed by the services' own libraries, for tests/remote/test_sign.c.

    tools/make_signature_goldens.py --write tests/goldens/signatures.json   writes a new one
    tools/make_signature_goldens.py --check tests/goldens/signatures.json   exit 1 if a new one would differ, exit 77
                                                                            without botocore and oss2

S3's by botocore (S3SigV4Auth), and the host and path of s3:// without an endpoint by its client; OSS's by oss2
(ProviderAuthV4). The libraries' clock is replaced by a fixed time; nothing goes to the network.
"""
import datetime
import hashlib
import json
import os
import sys
import unittest.mock
import urllib.parse

try:
    import botocore.auth
    import botocore.awsrequest
    import botocore.client
    import botocore.credentials
    import botocore.session
    import oss2
    import oss2.credentials
    import oss2.http
except ImportError:
    print("skipped: botocore and oss2 are not installed")
    sys.exit(77)

ID, SECRET, TOKEN = "AKIDENTRAINTEST", "secret/of+this=test0123456789abcdefghij", "short/lived+token=="
HANGZHOU = "oss-cn-hangzhou.aliyuncs.com"
TIME = 1792847999  # 2026-10-24 13:19:59 UTC
LIST = {"encoding-type": "url", "list-type": "2", "prefix": "a b/\u6570+%41&c=d"}
BODY = hashlib.sha256(b"what is saved").hexdigest()
KEYS = ["train-images-idx3-ubyte", "a b/c", "\u6570\u636e/\u8bad\u7ec3.bin", "1+1=2", "100%/%41%2F", "-._~!*'();:@&=$,[]?#",
        "a//b/../c/", "\u00e4\U0001f600"]


def cases():
    """(url, endpoint, region, method, key, query, body, token, time)"""
    for bucket, endpoint in (("s3://entrain-test", None), ("s3://entrain.test", None),
                             ("s3://entrain-test", "http://127.0.0.1:9000"),
                             (f"oss://entrain-test.{HANGZHOU}", None),
                             (f"oss://entrain-test.{HANGZHOU}", "https://oss.example.com:8443")):
        region = "eu-west-3" if bucket.startswith("s3") else "cn-hangzhou"
        for key in KEYS:
            yield bucket, endpoint, region, "GET", key, {}, None, None, TIME
        yield bucket, endpoint, region, "GET", "", LIST, None, None, TIME
        yield bucket, endpoint, region, "GET", "", {"continuation-token": "1/2+3==", **LIST}, None, TOKEN, TIME
        yield bucket, endpoint, region, "GET", "a b", {}, None, TOKEN, TIME
        yield bucket, endpoint, region, "PUT", "runs/\u4e00 1.safetensors", {}, BODY, None, TIME
        yield bucket, endpoint, region, "PUT", "runs/1", {}, BODY, TOKEN, TIME
        yield bucket, endpoint, region, "POST", "runs/1", {"uploads": ""}, None, TOKEN, TIME
        yield bucket, endpoint, region, "PUT", "runs/1", {"partNumber": "10000", "uploadId": "a b/+=&%"}, BODY, None, TIME
        yield bucket, endpoint, region, "DELETE", "runs/1", {"uploadId": "a b/+=&%"}, None, None, TIME
    yield "s3://entrain-test", None, "us-east-1", "GET", "k", {}, None, None, 951782400  # 2000-02-29 00:00:00
    yield "s3://entrain-test", None, "cn-north-1", "GET", "k", {}, None, None, TIME
    yield f"oss://entrain-test.{HANGZHOU}", None, "cn-hangzhou", "GET", "k", {}, None, None, 951782400


for name in [name for name in os.environ if name.startswith("AWS_")]:  # of the user's environment
    del os.environ[name]
session, clients = botocore.session.Session(), {}


def clock(seconds):
    class Stopped(datetime.datetime):
        @classmethod
        def utcnow(cls):
            return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).replace(tzinfo=None)
    return Stopped


def quoted(path):
    return urllib.parse.quote(path, safe="/~")


class Asked(Exception):
    pass


def place_of_s3(bucket, endpoint, region, key):
    """Host and path, by what botocore's client would send; "/BUCKET/KEY" below an endpoint."""
    if endpoint:
        return urllib.parse.urlsplit(endpoint).netloc, quoted(f"/{bucket}/{key}")

    def stop(request, **_):
        raise Asked(request.url)

    if region not in clients:
        config = botocore.client.Config(s3={"us_east_1_regional_endpoint": "regional"})
        clients[region] = session.create_client("s3", region_name=region, aws_access_key_id=ID,
                                                aws_secret_access_key=SECRET, config=config)
        clients[region].meta.events.register("before-send.s3", stop)
    try:
        clients[region].get_object(Bucket=bucket, Key=key or "x")
    except Asked as asked:
        parts = urllib.parse.urlsplit(str(asked))
    return parts.netloc, parts.path if key else parts.path[:-1]


def sign_s3(host, path, method, query, body, token, region, time):
    request = botocore.awsrequest.AWSRequest(method, f"https://{host}{path}", params=query)
    if body:
        request.headers["X-Amz-Content-SHA256"] = body
    auth = botocore.auth.S3SigV4Auth(botocore.credentials.Credentials(ID, SECRET, token), "s3", region)
    now = datetime.datetime.fromtimestamp(time, datetime.timezone.utc)
    with unittest.mock.patch("botocore.auth.get_current_datetime", lambda *_: now), \
            unittest.mock.patch.object(auth, "payload", lambda _: body or botocore.auth.EMPTY_SHA256_HASH):
        auth.add_auth(request)
    names = ("x-amz-content-sha256", "x-amz-date", "x-amz-security-token", "Authorization")
    return auth.canonical_query_string(request), [f"{n}: {request.headers[n]}" for n in names if n in request.headers]


def sign_oss(bucket, host, method, key, query, token, region, time):
    auth = oss2.ProviderAuthV4(oss2.credentials.StaticCredentialsProvider(ID, SECRET, token))
    request = oss2.http.Request(method, f"https://{host}/", params=dict(query), region=region, product="oss")
    with unittest.mock.patch("oss2.auth.datetime", clock(time)):
        auth._sign_request(request, bucket, key)
    names = ("x-oss-content-sha256", "x-oss-date", "x-oss-security-token")
    return (auth._ProviderAuthV4__get_canonical_query(request),
            [f"{n}: {request.headers[n]}" for n in names if n in request.headers] +
            [f"Authorization: {request.headers['authorization']}"])


def golden():
    signed = []
    for url, endpoint, region, method, key, query, body, token, time in cases():
        bucket = url.split("://")[1].split(".oss-")[0]
        if url.startswith("s3"):
            host, path = place_of_s3(bucket, endpoint, region, key)
            text, headers = sign_s3(host, path, method, query, body, token, region, time)
        else:
            host = urllib.parse.urlsplit(endpoint).netloc if endpoint else f"{bucket}.{HANGZHOU}"
            path = quoted(f"/{bucket}/{key}" if endpoint else f"/{key}")
            text, headers = sign_oss(bucket, host, method, key, query, token, region, time)
        signed.append({"url": url, "endpoint": endpoint, "region": region, "method": method, "key": key, "query": query,
                       "body": body, "token": token, "time": time, "host": host, "path": path, "signed_query": text,
                       "headers": headers})
    return {"id": ID, "secret": SECRET, "requests": signed}


def main():
    if sys.argv[1] == "--write":
        with open(sys.argv[2], "w") as f:
            json.dump(golden(), f, indent=1)
            f.write("\n")
        return
    made = golden()
    with open(sys.argv[2]) as f:
        if json.load(f) != made:
            sys.exit(f"{sys.argv[2]} differs from the libraries' signatures")
    print(f"{len(made['requests'])} signatures are equal to botocore {botocore.__version__}'s and oss2 {oss2.__version__}'s")


main()
