#!/usr/bin/env python3
"""Data, weights and checkpoints in buckets (docs/object-storage.md): the programs, against a service that checks every signature
by botocore and oss2 (bucket_server.py), and by moto, if pip has it.

    test_buckets.py BUILD [NAME ..]
"""
import contextlib
import gzip
import hashlib
import io
import json
import logging
import multiprocessing
import os
import pathlib
import random
import re
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from free_port import take_port

# Promise: Training from object storage ends with the bytes of a folder with the same files, and only changed files
# are fetched again.
# Promise: A URL names an object or a folder, and no sibling whose name begins the same; where listing is forbidden, a
# data set is found by its files' names.
# Promise: Files larger than one request are uploaded in parts, and no part is left behind by an upload that fails, is
# stopped or is killed.
# Promise: Every checkpoint is uploaded while at most eight wait; a killed transfer is reported during the run; a
# service that answers no PUT is named after at most 30 s.
# Promise: Launcher and ranks hold no key, neither in memory, environment and arguments nor in any log or file.

try:
    from bucket_server import BUCKET, CUT, ID, REGION, SECRET, TOKEN, Server, error_of
except ImportError as missing:
    print(f"skipped: {missing} (pip install botocore oss2)")
    sys.exit(77)

BUILD = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path("build")
SECRETS = (ID, SECRET, TOKEN)
AT_ONCE = 8  # tests, which wait for most of their time
PART = 65536  # bytes of a part, and of the largest PUT, where a test wants parts


def keys_of(kind, token=None):
    names = {"s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
             "oss": ("OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET", "OSS_SESSION_TOKEN")}[kind]
    env = dict(zip(names, (ID, SECRET, token or "")))
    return {**env, "AWS_REGION": REGION} if kind == "s3" else env


class Place:
    """A folder with a cache and a home of its own, a server, and the commands in them."""

    def __init__(self, kind="s3"):
        self.kind, self.server, self.started = kind, Server(kind), []

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="entrain-test-buckets-")
        self.top = pathlib.Path(self.folder.name)
        self.cache = self.top / "cache"
        self.server.__enter__()
        return self

    def __exit__(self, *_):
        for process in self.started:  # of a test that has failed
            process.kill()
            process.wait()
        self.server.__exit__()
        self.folder.cleanup()

    def env(self, **more):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "OSS_"))}
        return {**kept, **keys_of(self.kind, self.server.token), "XDG_CACHE_HOME": str(self.cache), "HOME": str(self.top),
                **more}

    def popen(self, *args, program="entrain", env=None, **more):
        self.started.append(subprocess.Popen([BUILD / program, *map(str, args)], env=env or self.env(),
                                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more))
        return self.started[-1]

    def run(self, *args, code=0, timeout=120, **more):
        """What it said, all of it."""
        process = self.popen(*args, **more)
        out, err = process.communicate(timeout=timeout)
        said = out + err
        assert process.returncode == code, f"{args}: exit {process.returncode}, expected {code}\n{said}"
        assert not any(s in said for s in SECRETS), f"a key is in what it says: {said}"
        return said

    def data(self, prefix, *args, **more):
        """Trains a step on what lies there."""
        return self.run("run", "-n", "1", "--strategy=solo", "--steps=1", "--model=mlp", f"--data={self.server.url}/{prefix}",
                        f"--data-endpoint={self.server.endpoint}", "--limit-test-samples=16", *args, **more)

    def refuse(self, sentence, prefix, *args, **more):
        said = self.data(prefix, *args, code=2, **more)
        errors = [line for line in said.splitlines() if " E " in line]
        assert len(errors) == 1 and re.search(sentence, errors[0]), f"expected one sentence with \"{sentence}\":\n{said}"

    def mirror(self, *args):
        """`transfer` as a run starts it, ready; it says nothing but signs of life. Whoever closes its stdin stops it."""
        with open(self.top / "said", "wb") as said:
            up = subprocess.Popen(["sh", "-c", 'exec "$0" "$@" 3>&1', BUILD / "transfer", "mirror", f"--cache={self.cache}", "--endpoint",
                                   self.server.endpoint, *args], env=self.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=said, bufsize=0)
        self.started.append(up)
        assert up.stdout.read(1) == b"\0", "it is ready"
        return up

    def begin_upload(self, key, data=None, put_max=PART, part=PART, instead=()):
        """The end of a run that has saved `data` (None: what lies there) goes up; in parts, if it is larger than put_max.
        `instead` is of the requests from there on."""
        file, self.server.instead = self.top / "w.safetensors", []
        up = self.mirror(f"--file={file}", f"--as={self.server.url}/{key}", f"--put-max={put_max}", f"--part={part}")
        self.before, self.server.instead = len(self.server.requests), list(instead)
        if data is not None:
            file.unlink(missing_ok=True)
            file.write_bytes(data)
        up.stdin.write(b"f")
        return up

    def end_upload(self, up, code=0):
        """What it said."""
        while up.stdout.read(4096):
            pass
        ended, said = up.wait(60), (self.top / "said").read_text()
        assert ended == code, f"exit {ended}, expected {code}\n{said}"
        assert not any(s in said for s in SECRETS), said
        return said

    def upload(self, key, data=None, code=0, **sizes):
        return self.end_upload(self.begin_upload(key, data, **sizes), code)

    def methods(self):
        """Of the requests since the last upload began."""
        return [method for method, _, _ in self.server.requests[self.before:]]

    def copies(self):
        return sorted(p.name for p in (self.cache / "entrain").glob("*/*") if not p.name.startswith(".") and
                      not p.name.endswith(".entrain"))


def idx_set(train=64, test=16, seed=1):
    """The four files of a small set."""
    draw = random.Random(seed)
    files = {}
    for name, n in (("train", train), ("t10k", test)):
        files[f"{name}-images-idx3-ubyte"] = (b"\0\0\x08\x03" + n.to_bytes(4, "big") + (28).to_bytes(4, "big") * 2 +
                                              draw.randbytes(n * 784))
        files[f"{name}-labels-idx1-ubyte"] = b"\0\0\x08\x01" + n.to_bytes(4, "big") + bytes(i % 10 for i in range(n))
    return files


def put_set(server, prefix, **how):
    for name, data in idx_set(**how).items():
        server.objects[f"{prefix}/{name}"] = data


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- what is asked of a bucket ----

def test_the_same_bytes_as_a_folder():
    for kind in ("s3", "oss"):
        with Place(kind) as p:
            prefix = "my data+50%/中文 ~(1)"
            put_set(p.server, prefix, train=600)
            folder = p.top / "folder"
            folder.mkdir()
            for name, data in idx_set(train=600).items():
                (folder / name).write_bytes(data)
            common = ("run", "-n", "2", "--strategy=ring", "--model=mlp", "--epochs=2", "--batch-size=16")
            p.run(*common, f"--data={folder}", f"--out={p.top}/a", f"--save={p.top}/a.safetensors")
            p.run(*common, f"--data={p.server.url}/{prefix}", f"--data-endpoint={p.server.endpoint}", f"--out={p.top}/b",
                  f"--save={p.server.url}/w eights/b+1.safetensors")
            assert sha256(p.top / "a.safetensors") == sha256(p.top / "b" / "b+1.safetensors")
            assert p.server.objects["w eights/b+1.safetensors"] == (p.top / "a.safetensors").read_bytes()
            a, b = (json.loads((p.top / x / "result.json").read_text()) for x in "ab")
            assert a["data_sha256"] == b["data_sha256"]
            assert f"{p.server.url}/{prefix}" in (p.top / "b" / "config.yaml").read_text()
            assert "data-dir" not in (p.top / "b" / "config.yaml").read_text()
            assert p.server.failures == ["NoSuchKey"]  # --save asks whether it may, when nothing is there yet
    print("PROMISE training from a bucket of S3 and of OSS ends with the bytes of a folder with the same files; keys with "
          "blanks, plus, percent and Chinese; the weights go up whole")


def test_workers_by_hand():
    with Place() as p:
        put_set(p.server, "d")
        port, hold = take_port()
        args = ("--strategy=ring", "--model=mlp", "--steps=2", f"--data={p.server.url}/d", "--limit-test-samples=16",
                f"--data-endpoint={p.server.endpoint}", f"--rendezvous=tcp://127.0.0.1:{port}", "--world-size=3",
                f"--out={p.top}/out", f"--save={p.server.url}/w.safetensors")
        workers = [p.popen(*args, f"--rank={r}", program="worker") for r in range(3)]
        for worker in workers:
            out, err = worker.communicate(timeout=120)
            assert worker.returncode == 0, out + err
        hold.close()
        assert all(p.server.gets(f"d/{name}") == 1 for name in idx_set()), "one of the host fetches"
        assert "w.safetensors" in p.server.objects
    print("PROMISE three workers without a launcher: one fetches for all of the host, rank 0's weights go up")


def test_it_is_fetched_once():
    with Place() as p:
        put_set(p.server, "d")
        p.data("d")
        names = list(idx_set())
        assert p.copies() == sorted(names)
        p.data("d")
        assert all(p.server.gets(f"d/{n}") == 1 for n in names)
        known = next((p.cache / "entrain").glob("*/train-images-idx3-ubyte.entrain"))
        says = json.loads(known.read_text())
        assert says["sha256"] == hashlib.sha256(p.server.objects["d/" + names[0]]).hexdigest() and says["etag"] and says["size"]
        copy = known.with_suffix("")
        os.utime(copy)  # other time, same bytes
        p.data("d")
        assert p.server.gets("d/" + names[0]) == 1
        copy.write_bytes(copy.read_bytes()[:-1] + b"x")  # somebody touches it
        p.data("d")
        assert p.server.gets("d/" + names[0]) == 2 and copy.read_bytes() == p.server.objects["d/" + names[0]]
        put_set(p.server, "d", seed=2)  # the labels stay
        p.data("d")
        assert p.server.gets("d/" + names[0]) == 3 and p.server.gets("d/train-labels-idx1-ubyte") == 1
        for path in (p.cache / "entrain").rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, f"{path} is open to others"
        assert stat.S_IMODE((p.cache / "entrain").stat().st_mode) == 0o700
        said = p.run("data", "--clear-cache")
        assert "removed" in said and list((p.cache / "entrain").iterdir()) == []
    print("PROMISE a second run fetches nothing; what changed here or there is fetched anew; the cache is the owner's alone")


def test_many_objects():
    with Place() as p:
        put_set(p.server, "d")
        for i in range(2300):
            p.server.objects[f"d/a-{i:05d} 中"] = b"x"
        p.data("d")
        said = p.run("data", f"{p.server.url}/d/", f"--data-endpoint={p.server.endpoint}")
        assert "2304 objects" in said and "a-02299 中" in said
        listed = [path for _, path, _ in p.server.requests if "list-type" in path]
        assert len(listed) == 6, "three pages each"
    print("PROMISE a prefix of 2,304 objects: all of them are seen, by pages")


def test_what_a_name_lists():
    for kind in ("s3", "oss"):
        with Place(kind) as p:
            keys = ("data", "data/a", "data/b/c", "data-old/a", "data.bin", "database/a")
            p.server.objects.update({key: b"xy" for key in keys})

            def listed(name, **more):
                lines = p.run("data", f"{p.server.url}{name}", f"--data-endpoint={p.server.endpoint}", **more).splitlines()
                return [line.split()[-1] for line in lines[:-1]], lines[-1]

            assert listed("/data") == (["data", "data/a", "data/b/c"], "3 objects, 0.0 MB")
            assert listed("/data/") == (["data/a", "data/b/c"], "2 objects, 0.0 MB")
            assert listed("/data-old") == (["data-old/a"], "1 object, 0.0 MB")
            assert listed("/data.bin") == (["data.bin"], "1 object, 0.0 MB")
            assert listed("/dat") == ([], "0 objects, 0.0 MB")
            assert listed("")[0] == listed("/")[0] == sorted(keys)
            p.server.instead = [(403, {})]  # of the HEAD: they may list, and not read
            assert listed("/data") == (["data/a", "data/b/c"], "2 objects, 0.0 MB")
            p.server.instead = [(403, {})]
            assert "may not read an object of this name" in listed("/data.bin")[1]
    print("PROMISE `entrain data URL` lists the object of that key and the folder of that name, and no sibling that begins so")


def test_keys_that_end():
    for kind in ("s3", "oss"):
        with Place(kind) as p:
            p.server.token = TOKEN
            put_set(p.server, "d")
            p.data("d")
            p.server.token = "another one"
            env = p.env(**keys_of(kind, TOKEN))
            p.refuse("does not let the keys .* in, HTTP 403 .ExpiredToken", "d", env=env)
    print("PROMISE temporary tokens are used; one that has ended is named")


# ---- what goes wrong ----

def test_trouble_on_the_way():
    with Place() as p:
        put_set(p.server, "d", train=10)
        size = len(p.server.objects["d/train-images-idx3-ubyte"])
        p.server.instead = [(503, {}), (500, {}), (0, {}), (429, {"Retry_After": "1"}), (502, {})]
        begin = time.monotonic()
        p.data("d")
        assert time.monotonic() - begin >= 1 and p.server.instead == []
        p.run("data", "--clear-cache")
        p.server.cuts = [10] * 100000
        p.data("d", timeout=300)
        assert p.copies() == sorted(idx_set()), p.copies()
        assert p.server.gets("d/train-images-idx3-ubyte") > size // 10, (p.server.gets("d/train-images-idx3-ubyte"), size)
        p.run("data", "--clear-cache")
        p.server.cuts, p.server.knows_ranges = [size // 2, 100], False
        p.data("d")
        p.run("data", "--clear-cache")
        p.server.knows_ranges = True
        p.server.instead = [(503, {})] * 100
        said = p.data("d", code=1)
        assert "HTTP 503 (SlowDown" in said and p.server.instead == [(503, {})] * 93
        assert re.search(r"waiting for 127.0.0.1:\d+ to give its list of .*: HTTP 503, again in", said), said
        p.server.instead = []
        p.server.cuts = [0] * 1000
        said = p.data("d", code=1)
        assert "cannot be reached, or stops in between (7 tries)" in said, said
    print("PROMISE 429, 500, 502 and 503 are tried again and Retry-After is kept; a connection that is cut every 10 bytes comes "
          "to the whole set; with no progress it ends after 7 tries")


def test_what_is_not_what_was_listed():
    with Place() as p:
        put_set(p.server, "d")
        image = "d/train-images-idx3-ubyte"
        changed = []

        def change(key):
            if key == image and not changed:
                changed.append(key)
                put_set(p.server, "d", seed=3)

        p.server.cuts, p.server.on_get = [100], change
        p.data("d")
        copy = next((p.cache / "entrain").glob("*/train-images-idx3-ubyte"))
        assert changed and copy.read_bytes() == p.server.objects[image]
        p.server.on_get = None
        p.run("data", "--clear-cache")
        p.server.given_etag = "W/{}"
        p.data("d")
        p.server.given_etag = "{}"
        p.data("d")
        assert p.server.gets("d/t10k-labels-idx1-ubyte") == 2, "it is the same object"
        p.run("data", "--clear-cache")
        p.server.other_etag = '"00000000000000000000000000000000"'
        assert "another ETag or size each of 3 times" in p.data("d", code=1)
        p.server.other_etag, p.server.size_off = None, 1
        assert p.data("d", code=1)
        p.server.size_off = -1
        assert p.data("d", code=1)
        assert p.copies() == [], "nothing of it has a name"
    print("PROMISE an object that changes while it comes is fetched anew; a wrong ETag or size never becomes a file")


def test_refusals():
    with Place() as p:
        put_set(p.server, "d")
        p.server.objects["other/readme.txt"] = b"x"
        p.refuse("nothing lies there", "nowhere")
        p.refuse(r"no files of a data set lie right there .* but readme.txt", "other")
        p.server.objects["pt/training.pt"] = p.server.objects["pt/test.pt"] = b"x"
        p.refuse(r"there lies training.pt, .*tools/pt2idx.py training.pt test.pt FOLDER", "pt")
        p.refuse(r"d=\S+ such URLs are not known; there are s3://BUCKET/PREFIX and oss://"[2:], "d", "--data=gs://bucket/x")
        p.refuse("can be no bucket", "d", "--data=s3://B/x")
        p.refuse("http:// is for this host only", "d", "--data-endpoint=http://example.com")
        p.refuse("knows no such bucket, HTTP 404", "d", "--data=s3://another-bucket/x")
        p.refuse("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY .and AWS_SESSION_TOKEN", "d",
                 env={k: v for k, v in p.env().items() if not k.startswith("AWS_")})
        p.refuse("AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not", "d", env=p.env(AWS_SECRET_ACCESS_KEY=""))
        p.refuse("HTTP 403 .SignatureDoesNotMatch", "d", env=p.env(AWS_SECRET_ACCESS_KEY="wrong"))
        keys = p.top / "keys"
        keys.write_text("[default]\naws_access_key_id = x\naws_secret_access_key = y\n")
        keys.chmod(0o640)
        p.refuse(r"others may read these keys.*chmod 600", "d", f"--data-keys={keys}")
        p.refuse("there is no file of keys", "d", f"--data-keys={p.top}/none")
        p.server.instead = [(307, {"Location": "http://127.0.0.1:1/elsewhere"})]
        p.refuse("sends requests .* on to http://127.0.0.1:1/elsewhere, which is not followed", "d")
        p.server.instead = [(301, {"x_amz_bucket_region": "us-west-9"})]
        p.refuse("lies in the region us-west-9, .*: set AWS_REGION=us-west-9", "d")
        p.server.skewed = True
        p.refuse(r"the clock of this host says .* GMT, that of the service .* GMT: set it right", "d")
        p.server.skewed = False
        for page in ("<!DOCTYPE x [<!ENTITY a 'b'>]><ListBucketResult/>", "<html>", "\0\1\2", "<ListBucketResult><IsTruncated>true"
                     "</IsTruncated></ListBucketResult>"):
            p.server.page = page
            p.refuse("answers no list of", "d")
        p.server.page = None
        p.refuse("--save=.* needs --out=FOLDER", "d", f"--save={p.server.url}/w.safetensors")
        p.refuse("ends in .safetensors", "d", f"--save={p.server.url}/x/result.json", f"--out={p.top}/o")
        p.server.objects["below/cifar-10-batches-bin/test_batch.bin"] = b"x"
        p.refuse("no files of a data set lie right there .* but cifar-10-batches-bin/", "below")
        before = p.server.gets("d/train-images-idx3-ubyte")
        p.refuse("such URLs are not known", "d", "--save=gs://bucket/w.safetensors", f"--out={p.top}/o")
        p.server.objects["used/checkpoint-000000000064.safetensors"] = b"x"
        p.refuse("holds checkpoints of an earlier run: give --resume=auto", "d", f"--checkpoint-dir={p.server.url}/used",
                 "--checkpoint-every=64", f"--out={p.top}/o")
        assert p.server.gets("d/train-images-idx3-ubyte") <= before + 1
        keys.chmod(0o600)
        keys.write_text(f"[default]\naws_access_key_id = {ID}\naws_secret_access_key = {SECRET}\n")
        p.data("d", f"--data-keys={keys}", env={k: v for k, v in p.env().items() if not k.startswith("AWS_") or k == "AWS_REGION"})
        (p.cache / "entrain").chmod(0o777)
        p.refuse("others may write there .mode 0777", "d")
    print("PROMISE an unknown scheme, a wrong bucket, region, key, clock, prefix, endpoint or cache, files of keys that others may "
          "read and answers that are no lists: one sentence each, exit 2; no redirect is followed")


def test_https():
    with Place() as p:
        key, certificate = p.top / "key.pem", p.top / "certificate.pem"
        made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=entrain test",
                               "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate], capture_output=True)
        assert made.returncode == 0, made.stderr
        p.server.speak_tls(certificate, key)
        put_set(p.server, "d")
        p.refuse("is not trusted: .*; AWS_CA_BUNDLE=FILE names the authority", "d")
        p.refuse("cannot be asked: ", "d", env=p.env(AWS_CA_BUNDLE=str(p.top / "none")))
        assert p.server.requests == [], "nothing was asked of a host that is not trusted"
        p.data("d", env=p.env(AWS_CA_BUNDLE=str(certificate)))
    print("PROMISE https: a host whose certificate is not trusted is asked nothing; AWS_CA_BUNDLE names an authority of one's own")


def test_no_room():
    with Place() as p:
        put_set(p.server, "d", train=4000)
        p.cache.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", p.cache], capture_output=True).returncode == 0
        if not mounted:
            print("not tried: a full disk (no mount here)")
            return
        try:
            p.refuse(r"needs 3\.2 MB in .*, and 2\.1 MB are free there: make room", "d")
        finally:
            subprocess.run(["umount", p.cache], check=True)
    print("PROMISE a disk without room is named before anything comes, with both figures")


# ---- who does it ----

@contextlib.contextmanager
def held(server, key):
    """The first GET of that key comes to its half and stays there until the event is set."""
    reached, go = threading.Event(), threading.Event()

    def wait(asked):
        if asked == key and not reached.is_set():
            reached.set()
            go.wait(60)

    server.on_get = wait
    yield reached, go
    go.set()
    server.on_get = None


def test_two_at_once():
    with Place() as p:
        put_set(p.server, "d")
        with held(p.server, "d/train-images-idx3-ubyte") as (reached, go):
            args = ("run", "-n", "1", "--strategy=solo", "--steps=1", "--model=mlp", f"--data={p.server.url}/d",
                    f"--data-endpoint={p.server.endpoint}", "--limit-test-samples=16")
            first = p.popen(*args)
            assert reached.wait(60)
            second = p.popen(*args)
            lines = []
            for line in second.stderr:
                lines.append(line)
                if "another process fetches" in line:
                    break
            go.set()
            for process in (first, second):
                out, err = process.communicate(timeout=120)
                assert process.returncode == 0, out + err + "".join(lines)
        assert all(p.server.gets(f"d/{n}") == 1 for n in idx_set())
    print("PROMISE two launchers at once: one fetches, the other says that it waits")


def test_killed_and_resumed():
    for sent in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        with Place() as p:
            put_set(p.server, "d", train=2000)
            image = "d/train-images-idx3-ubyte"
            half = len(p.server.objects[image]) // 2
            p.server.cuts = [half]  # it comes first
            stop, go = threading.Event(), threading.Event()

            def wait_at_rest(key, seen=[]):
                if key == image:
                    seen.append(key)
                if key == image and len(seen) == 2:  # the half is there
                    stop.set()
                    go.wait(60)

            p.server.on_get = wait_at_rest
            run = p.popen("run", "-n", "1", "--strategy=solo", "--steps=1", "--model=mlp", f"--data={p.server.url}/d",
                          f"--data-endpoint={p.server.endpoint}", "--limit-test-samples=16")
            p.server.cuts.append(0)
            assert stop.wait(60)
            run.send_signal(sent)
            out, err = run.communicate(timeout=30)
            go.set()
            assert run.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[sent], out + err
            assert "train-images-idx3-ubyte" not in p.copies(), "it has its name when it is whole"
            p.server.on_get, p.server.cuts = None, []
            before = len(p.server.requests)
            p.data("d")
            asked = [headers.get("Range") for _, path, headers in p.server.requests[before:] if path.endswith("train-images-idx3-ubyte")]
            assert asked == [f"bytes={half}-"], asked
            assert [x for x in (p.cache / "entrain").rglob(".*") if x.suffix in (".part", ".of")] == []
    print("PROMISE a fetch that is killed, or ended by a signal, is taken up where it was")


def memory_of(pid):
    """All that it has in memory, as root sees it."""
    found = bytearray()
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        begin, end = (int(x, 16) for x in line.split()[0].split("-"))
        if " r" not in line[:40] or "[v" in line or end - begin > 1 << 30:
            continue
        with open(f"/proc/{pid}/mem", "rb", 0) as memory, contextlib.suppress(OSError, ValueError):
            memory.seek(begin)
            found += memory.read(end - begin)
    return bytes(found)


def below(pid):
    """(pid, name) of its children and theirs."""
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield int(child), pathlib.Path(f"/proc/{child}/comm").read_text().strip()
        yield from below(int(child))


def test_nobody_else_has_the_keys():
    with Place() as p:
        p.server.token = TOKEN
        put_set(p.server, "d")
        run = p.popen("run", "-n", "2", "--strategy=ring", "--epochs=100000", "--model=mlp", f"--data={p.server.url}/d",
                      f"--data-endpoint={p.server.endpoint}", "--limit-test-samples=16", f"--out={p.top}/out", "--log-level=trace",
                      f"--save={p.server.url}/w.safetensors", f"--checkpoint-dir={p.server.url}/c", "--checkpoint-every=3000")
        deadline = time.monotonic() + 60
        while not any(k.startswith("c/") for k in p.server.objects):
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        names = {}
        for pid, name in [(run.pid, "entrain"), *below(run.pid)]:
            names.setdefault(name, []).append(pid)
            env = pathlib.Path(f"/proc/{pid}/environ").read_bytes() + pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            where = env + (b"" if name == "transfer" else memory_of(pid))
            found = [s for s in SECRETS if s.encode() in where]
            assert not found, f"{name} has the key {found}: {where[max(0, where.index(found[0].encode()) - 200):][:400]}"
        assert len(names["worker"]) == 2 and len(names["transfer"]) == 1, names
        transfer = names["transfer"][0]
        assert pathlib.Path(f"/proc/{transfer}").stat().st_uid == 0
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=60)
        assert run.returncode == 143, out + err
        files = [x for x in [*(p.top / "out").rglob("*"), *p.cache.rglob("*")] if x.is_file()]
        said = out + err + "".join(x.read_bytes().decode(errors="replace") for x in files)
        assert len(files) > 6 and not any(s in said for s in SECRETS)
        newest = max((p.top / "out" / "checkpoints").iterdir())
        assert p.server.objects["c/" + newest.name] == newest.read_bytes(), "the last one is up too"
    print("PROMISE launcher and ranks have no key: neither in memory, environment and arguments, nor in any log or file")


def test_saved():
    with Place() as p:
        put_set(p.server, "d", train=640)
        args = ("run", "-n", "2", "--strategy=ring", "--epochs=3", "--batch-size=16", "--model=mlp", f"--data={p.server.url}/d",
                f"--data-endpoint={p.server.endpoint}", "--limit-test-samples=16", f"--save={p.server.url}/w.safetensors",
                f"--checkpoint-dir={p.server.url}/c", "--checkpoint-every=640", "--resume=auto")
        p.run(*args, f"--out={p.top}/a")
        up = sorted(k for k in p.server.objects if k.startswith("c/"))
        assert up and all(p.server.objects[f"c/{x.name}"] == x.read_bytes() for x in (p.top / "a" / "checkpoints").iterdir())
        weights = p.server.objects.pop("w.safetensors")
        del p.server.objects[up[-1]]  # as if the run had died before its end
        p.server.objects["c/checkpoint-best.safetensors"] = b"no checkpoint of ours"
        p.run(*args, f"--out={p.top}/b")  # on another host
        assert json.loads((p.top / "b" / "result.json").read_text())["resumed_from"] and p.server.objects["w.safetensors"] == weights
        said = p.run("eval", f"--init={p.server.url}/w.safetensors", "--model=mlp", f"--data={p.server.url}/d",
                     f"--data-endpoint={p.server.endpoint}")
        assert "Accuracy" in said or "accuracy" in said

        def refuse_puts():
            p.server.refuses_puts = True

        refuse_puts()
        said = p.run(*args, f"--out={p.top}/c", f"--save={p.server.url}/again.safetensors", code=1)
        assert "is not in the bucket; it stays here" in said and sha256(p.top / "c" / "again.safetensors") == hashlib.sha256(weights).hexdigest()
        p.server.refuses_puts = False
        p.run(*args, f"--out={p.top}/c", f"--save={p.server.url}/again.safetensors")
        assert p.server.objects["again.safetensors"] == weights, "the same line again takes it up"
    print("PROMISE checkpoints and weights go up whole; another host goes on from the newest; an upload that fails is said, exit 1, "
          "its file stays, and the same line again takes it up")


def train_into(p, prefix, *args):
    """A run that saves checkpoints into the bucket, and what is still to be said."""
    put_set(p.server, "d", train=640)
    return p.popen("run", "-n", "1", "--strategy=solo", "--batch-size=16", "--model=mlp", f"--data={p.server.url}/d",
                   f"--data-endpoint={p.server.endpoint}", "--limit-test-samples=16", f"--out={p.top}/{prefix}",
                   f"--checkpoint-dir={p.server.url}/{prefix}", *args)


def test_what_goes_up():
    with Place() as silent, Place() as p:
        silent.server.takes_puts.clear()
        begin = time.monotonic()
        never = train_into(silent, "c", "--epochs=1", "--checkpoint-every=160", f"--save={silent.server.url}/w.safetensors")

        # Faster than the service takes them: all go there, and two stay here.
        p.server.put_seconds = 0.4
        run = train_into(p, "c", "--epochs=2", "--checkpoint-every=160")
        out, err = run.communicate(timeout=60)
        assert run.returncode == 0, out + err
        written = json.loads((p.top / "c" / "result.json").read_text())["checkpoints"]["written"]
        up = [k for k in p.server.objects if k.startswith("c/")]
        assert len(up) == written >= 7, (up, written)
        assert sorted(x.name for x in (p.top / "c" / "checkpoints").iterdir()) == [k[2:] for k in sorted(up)[-2:]]

        # Who does it is killed: that is said while the run goes on, and nothing piles up.
        p.server.put_seconds = 0
        run = train_into(p, "k", "--epochs=100000", "--checkpoint-every=640")
        while not any(k.startswith("k/") for k in p.server.objects):
            assert run.poll() is None and time.monotonic() < begin + 60
            time.sleep(0.05)
        os.kill(next(pid for pid, name in below(run.pid) if name == "transfer"), signal.SIGKILL)
        for line in run.stderr:
            if "has ended by signal 9: nothing goes to the bucket from now on" in line:
                break
        else:
            raise AssertionError("nobody says that it was killed")
        assert run.poll() is None
        last = max((p.top / "k" / "checkpoints").iterdir())
        while len({last, *(p.top / "k" / "checkpoints").glob("checkpoint-*.safetensors")}) < 3:  # two newer ones
            assert run.poll() is None and time.monotonic() < begin + 60
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=60)
        assert run.returncode == 143 and len([*(p.top / "k" / "checkpoints").glob("checkpoint-*.safetensors")]) == 2

        out, err = never.communicate(timeout=90)
        assert never.returncode == 1 and time.monotonic() - begin < 75, out + err
        assert re.search(r"waiting for 127.0.0.1:\d+ to take c/checkpoint-\d+.safetensors of .*: nothing for", err), err
        assert "nothing has gone to the bucket for 30 s" in err and "with --resume=auto the same line takes it up" in err, err
    print("PROMISE every checkpoint goes up, while at most eight wait; a killed transfer is told at once; a service that answers "
          "no PUT is named, and waited for at most 30 s after the run")


def test_told_wait_is_life():
    """Whoever waits for transfer ends it when it is silent, but not while the service has said when to ask again."""
    with Place() as p:
        seconds, file, signs = 5, p.top / "w.safetensors", []
        up = p.mirror(f"--file={file}", f"--as={p.server.url}/w.safetensors")
        p.server.instead = [(503, {"Retry_After": str(seconds)})]
        file.write_bytes(b"weights")
        up.stdin.write(b"f")
        while up.stdout.read(1):
            signs.append(time.monotonic())
        assert up.wait(60) == 0 and p.server.objects["w.safetensors"] == b"weights"
        assert signs[-1] - signs[0] > seconds - 1, "it has waited"
        assert max(b - a for a, b in zip(signs, signs[1:])) < seconds - 1, signs
    print("PROMISE a wait for which the service has asked (Retry-After) shows signs of life to whoever waits at the run's end")


# ---- uploads in parts ----

def test_uploads_in_parts():
    draw = random.Random(1)
    for kind in ("s3", "oss"):
        with Place(kind) as p:
            p.server.token = TOKEN
            for size, parts, sizes in ((0, 0, {}), (PART, 0, {}), (PART + 1, 2, {}), (3 * PART, 3, {}), (3 * PART + 7, 4, {}),
                                       (2 * PART, 0, {"put_max": 2 * PART}), (2 * PART + 1, 3, {"put_max": 2 * PART})):
                key, data = f"w eights/\u4e00+{size}.safetensors", draw.randbytes(size)
                p.upload(key, data, **sizes)
                assert p.server.objects[key] == data and p.server.uploads == {}
                expected = ["POST", *["PUT"] * parts, "HEAD", "POST", "HEAD"] if parts else ["PUT"]
                assert p.methods() == expected, (size, p.methods())
            assert not os.listxattr(p.top / "w.safetensors")
    print("PROMISE what is larger than one request goes up in parts, in S3 and OSS, and its size is compared at the end")


def test_parts_that_fail():
    with Place() as p:
        data, old, key = random.Random(2).randbytes(3 * PART - 5), b"of before", "w.safetensors"
        as_usual = (0, {})

        def fails(sentence, *instead):
            p.server.objects[key], p.server.etags = old, {}
            said = p.upload(key, data, code=1, instead=instead)
            assert re.search(sentence, said), said
            assert p.server.objects[key] == old and p.server.uploads == {}, "nothing of it is left"
            assert not os.listxattr(p.top / "w.safetensors")

        def works(*instead):
            p.server.objects[key], p.server.etags = old, {}
            p.upload(key, data, instead=instead)
            assert p.server.objects[key] == data and p.server.uploads == {} and not p.server.instead and not p.server.completes

        works((503, {}), as_usual, (500, {}), as_usual, (CUT, {}), as_usual, (502, {}), as_usual, (429, {"Retry_After": "1"}))
        puts = p.methods().count("PUT")  # a part that fails is sent again, and no other
        assert puts == 6, p.methods()
        p.server.completes = [("", error_of("InternalError")), ("", ""), ("", error_of("SlowDown")), ("", "<html>")]
        works()
        p.server.completes = [("join", None)]  # the answer is lost, and the upload over
        works()
        works(*[as_usual] * 4, (403, {}), as_usual, (403, {}))  # who may write may not read

        fails("HTTP 403 .AccessDenied", as_usual, as_usual, (403, {}))
        p.server.completes = [("", error_of("InvalidPart"))]
        fails("InvalidPart: of it")
        p.server.completes = [("forget", None)]
        fails("does not know its parts any more")
        p.server.tells_etag = False
        fails("gives no ETag for part 1")
        p.server.tells_etag, p.server.page = True, "<InitiateMultipartUploadResult/>"
        said = p.upload(key, data, code=1)
        assert "gives no id for its parts" in said, said
        p.server.page, p.server.on_part, p.server.uploads = None, lambda number: p.server.uploads.clear(), {}
        fails("knows no such upload, HTTP 404 .NoSuchUpload")
        p.server.on_part, p.server.joins_less = None, 1
        said = p.upload(key, data, code=1)
        assert f"has {len(data) - 1} bytes there instead of {len(data)}" in said, said
        p.server.joins_less = 0

        said = p.upload(key, data, code=1, instead=[as_usual, *[(403, {})] * 2])
        assert "these keys may not remove them" in said and len(p.server.uploads) == 1, said
        p.server.uploads = {}

        # The service is gone, for the DELETE too.
        del p.server.objects[key]
        said = p.upload(key, data, code=1, instead=[as_usual, as_usual, *[(503, {})] * 100])
        assert "HTTP 503 (SlowDown" in said and "parts of it stay in the bucket" in said, said
        assert ": the next upload of this file removes them" in said and len(p.server.uploads) == 1, said
        said = p.upload(key)
        assert "the parts of an upload that was cut off are removed there" in said and p.server.uploads == {}, said
        assert p.server.objects[key] == data and not os.listxattr(p.top / "w.safetensors")
    print("PROMISE a part that fails is sent again, alone; a 200 with an error is one; a lost answer is made sure of; what is refused "
          "or gone leaves the old object and no parts, or says that they stay and removes them with the next upload")


@contextlib.contextmanager
def held_part(server, number):
    """The answer to that part waits for the event, once; the first event says that it has come."""
    reached, go = threading.Event(), threading.Event()

    def wait(part):
        if part == number and not reached.is_set():
            reached.set()
            go.wait(60)

    server.on_part = wait
    yield reached, go
    go.set()
    server.on_part = None


def wait_until(is_true, what, seconds=20):
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_stopped_between_parts():
    data, key = random.Random(3).randbytes(4 * PART), "w.safetensors"
    with Place() as p:
        with held_part(p.server, 2) as (reached, _):
            up = p.begin_upload(key, data)
            assert reached.wait(60)
            begin = time.monotonic()
            up.stdin.close()  # nobody waits any more
            p.end_upload(up, code=1)
            assert time.monotonic() - begin < 7 and p.server.uploads == {} and p.methods()[-1] == "DELETE"

        with held_part(p.server, 2) as (reached, _):
            up = p.begin_upload(key, data)
            assert reached.wait(60)
            up.kill()
            p.end_upload(up, code=-9)
            assert len(p.server.uploads) == 1 and key not in p.server.objects
        said = p.upload(key)
        assert "the parts of an upload that was cut off are removed there" in said, said
        assert p.server.uploads == {} and p.server.objects[key] == data

        # Under a launcher: its own programs, but for smaller parts.
        own = p.top / "bin"
        own.mkdir()
        for name in ("entrain", "worker"):
            (own / name).write_bytes((BUILD / name).read_bytes())
            (own / name).chmod(0o755)
        (own / "plugins").symlink_to((BUILD / "plugins").resolve())
        (own / "transfer").write_text(f'#!/bin/sh\nexec {(BUILD / "transfer").resolve()} "$@" --put-max={PART} --part={PART}\n')
        (own / "transfer").chmod(0o755)
        args = ("run", "-n", "1", "--strategy=solo", "--epochs=1", "--model=mlp", "--data=synthetic", "--limit-train-samples=640",
                "--limit-test-samples=16", f"--data-endpoint={p.server.endpoint}", "--batch-size=16")
        p.run(*args, f"--out={p.top}/a", f"--save={p.server.url}/a.safetensors", f"--checkpoint-dir={p.server.url}/c",
              "--checkpoint-every=320", program=own / "entrain")
        up = [k for k in p.server.objects if k.startswith("c/")]
        assert len(up) == 2 and len(p.server.objects["a.safetensors"]) > 3 * PART
        assert p.server.objects["a.safetensors"] == (p.top / "a" / "a.safetensors").read_bytes()
        assert all(p.server.objects[k] == (p.top / "a" / "checkpoints" / k[2:]).read_bytes() for k in up)
        for sent, code in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
            with held_part(p.server, 2) as (reached, _):
                run = p.popen(*args, f"--out={p.top}/{code}", f"--save={p.server.url}/{code}.safetensors", program=own / "entrain")
                assert reached.wait(60) and len(p.server.uploads) == 1
                transfer = next(pid for pid, name in below(run.pid) if name == "transfer")
                begin = time.monotonic()
                run.send_signal(sent)
                out, err = run.communicate(timeout=60)
                assert run.returncode == code and time.monotonic() - begin < 8, out + err
                wait_until(lambda: p.server.uploads == {}, "its parts are removed")
                wait_until(lambda: not pathlib.Path(f"/proc/{transfer}").exists(), "nobody is left")
            assert f"{code}.safetensors" not in p.server.objects
    print("PROMISE who is stopped between two parts, by Ctrl-C or since its launcher was killed, removes them; what a killed one left "
          "is removed by the next upload of the file")


def test_buckets_as_people_have_them():
    with Place() as p:
        put_set(p.server, "d")
        p.run("run", "-n", "1", "--strategy=solo", "--steps=1", "--model=mlp", f"--data={p.server.url}/d", "--limit-test-samples=16",
              f"--out={p.top}/o", f"--save={p.server.url}/w.safetensors", env=p.env(AWS_ENDPOINT_URL=p.server.endpoint))
        local = ("eval", "--model=mlp", "--data=synthetic", "--limit-test-samples=16")
        said = p.run(*local, f"--init={p.server.url}/w.safetensors", env=p.env(AWS_ENDPOINT_URL="nowhere"), code=2)
        assert "AWS_ENDPOINT_URL=nowhere" in said and "--data-endpoint" not in said, said
        (p.top / ".aws").mkdir()
        config = p.top / ".aws" / "config"
        config.write_text(f"[profile mine]\naws_access_key_id = {ID}\naws_secret_access_key = {SECRET}\nregion = {REGION}\n"
                          f"endpoint_url = {p.server.endpoint}\n")
        config.chmod(0o600)
        no_keys = {k: v for k, v in p.env().items() if not k.startswith("AWS_")}
        p.server.may_not_list = True
        p.run(*local, f"--init={p.server.url}/w.safetensors", env={**no_keys, "AWS_PROFILE": "mine"})
        assert not any("list-type" in path for _, path, _ in p.server.requests[-2:]), "its name is enough"
        said = p.run(*local, f"--init={p.server.url}/none.safetensors", env={**no_keys, "AWS_PROFILE": "mine"}, code=2)
        assert "HTTP 403 (AccessDenied: s3:ListBucket is not allowed)" in said, said
        save = ("run", "-n", "1", "--strategy=solo", "--steps=1", "--model=mlp", "--data=synthetic", "--limit-train-samples=64",
                "--limit-test-samples=16", f"--save={p.server.url}/own/w.safetensors")
        said = p.run(*save, f"--out={p.top}/own", env={**no_keys, "AWS_PROFILE": "mine"})
        assert "may not list the bucket" in said and p.server.objects["own/w.safetensors"] == (p.top / "own" / "w.safetensors").read_bytes()
        said = p.run(*save, f"--out={p.top}/not", f"--data-endpoint={p.server.endpoint}", env=p.env(AWS_SECRET_ACCESS_KEY="wrong"), code=2)
        assert "HTTP 403 (SignatureDoesNotMatch" in said, said
        p.server.may_not_list = False
        said = p.run(*local, f"--init={p.server.url}/none.safetensors", env={**no_keys, "AWS_PROFILE": "mine"}, code=2)
        assert "there is no such object" in said, said
        p.server.instead = [(403, {})]  # of the HEAD: they may list, and not read
        said = p.run(*local, f"--init={p.server.url}/w.safetensors", env={**no_keys, "AWS_PROFILE": "mine"}, code=2)
        assert "is listed, but these keys may not read it" in said, said
        p.server.tells_size, p.server.instead = False, [(503, {})]  # which tells its own size
        said = p.run(*local, f"--init={p.server.url}/w.safetensors", env={**no_keys, "AWS_PROFILE": "mine"}, code=2)
        assert "does not say both ETag and size of w.safetensors" in said, said
        p.server.tells_size = True
        config.unlink()
        p.server.is_open = True
        p.data("d", "--data-keys=none", env=no_keys)
        p.server.is_open = False
        p.run("data", "--clear-cache")
        p.refuse(r"who has no keys \(--data-keys=none\) may not list it", "d", "--data-keys=none", env=no_keys)
        p.refuse("--data-keys=none asks a bucket that is open to all", "d", env=no_keys)
    print("PROMISE an object read and one saved without the right to list, AWS_ENDPOINT_URL, a profile of ~/.aws/config with its keys, and a bucket "
          "that is open to all")


def test_data_that_may_not_be_listed():
    for kind in ("s3", "oss"):
        with Place(kind) as p:
            p.server.may_not_list = True
            right = f"{kind}:List" + ("Bucket" if kind == "s3" else "Objects")
            p.refuse(rf"these keys may not list it .{right} is missing.*, or {kind}:GetObject is missing too. Check the prefix, or "
                     rf"allow {right}. Tried: .*train-labels-idx1-ubyte\[.gz\], .*"
                     r"train-images.idx3-ubyte\[.gz\], .*data_batch_1.bin, .*train.bin, test.bin$", "d")
            put_set(p.server, "d")
            packed = "d/train-images-idx3-ubyte"
            p.server.objects[packed + ".gz"] = gzip.compress(p.server.objects.pop(packed))
            said = p.data("d")
            assert "may not be listed: 4 files of a data set are there by their names" in said, said
            assert p.server.gets(packed + ".gz") == 1
            p.data("d")
            assert p.server.gets(packed + ".gz") == 1, "it is here"
            p.server.objects["d"] = b"x"
            said = p.run("data", f"{p.server.url}/d", f"--data-endpoint={p.server.endpoint}")
            assert "only this object is shown" in said and "1 object, 0.0 MB" in said, said
            p.server.may_not_list = False
            listed = p.server.requests[:]
            p.data("d")
            assert [method for method, _, _ in p.server.requests[len(listed):]] == ["GET"], "its list is enough"
            p.server.may_not_list = p.server.is_open = True
            no_keys = {k: v for k, v in p.env().items() if not k.startswith(("AWS_", "OSS_")) or k == "AWS_REGION"}
            p.run("data", "--clear-cache")
            p.data("d", "--data-keys=none", env=no_keys)
            p.refuse(r"who has no keys .--data-keys=none. may not list it", "none", "--data-keys=none", env=no_keys)
    print("PROMISE a data set in a bucket that may not be listed is found by its files' names, packed or not; a refusal says which "
          "were tried, and which right is missing")


def test_told_to_end_with_all():
    """Slurm and systemd send SIGTERM to every process of a job."""
    with Place() as p:
        put_set(p.server, "d", train=640)
        run = p.popen("run", "-n", "2", "--strategy=ring", "--epochs=100000", "--batch-size=16", "--model=mlp", f"--data={p.server.url}/d",
                      f"--data-endpoint={p.server.endpoint}", "--limit-test-samples=16", f"--checkpoint-dir={p.server.url}/c",
                      "--checkpoint-every=3000", f"--out={p.top}/o", start_new_session=True)
        deadline = time.monotonic() + 60
        while not any(k.startswith("c/") for k in p.server.objects):
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        for pid, _ in [(run.pid, "entrain"), *below(run.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        out, err = run.communicate(timeout=60)
        assert run.returncode == 143, out + err
        newest = max((p.top / "o" / "checkpoints").iterdir())
        assert p.server.objects["c/" + newest.name] == newest.read_bytes()
    print("PROMISE a SIGTERM to all processes of a job: the last checkpoint goes up all the same")


def test_moto():
    try:
        import boto3
        import flask  # noqa: F401 (moto needs it, and says so by a warning)
        from moto.server import ThreadedMotoServer
    except ImportError as missing:
        print(f"not tried: moto ({missing})")
        return
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with Place() as p:
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
        server.start()
        try:
            endpoint = "http://%s:%d" % server.get_host_and_port()
            s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=ID, aws_secret_access_key=SECRET)
            s3.create_bucket(Bucket=BUCKET)
            for name, data in idx_set().items():
                s3.put_object(Bucket=BUCKET, Key="a b+%/" + name, Body=data)
            env = p.env(AWS_REGION="us-east-1")
            p.run("run", "-n", "1", "--strategy=solo", "--steps=1", "--model=mlp", f"--data=s3://{BUCKET}/a b+%", f"--out={p.top}/o",
                  f"--data-endpoint={endpoint}", "--limit-test-samples=16", f"--save=s3://{BUCKET}/o u+t.safetensors", env=env)
            body = s3.get_object(Bucket=BUCKET, Key="o u+t.safetensors")["Body"].read()
            assert body == (p.top / "o" / "o u+t.safetensors").read_bytes()
            least, file = 5 << 20, p.top / "w.safetensors"  # moto refuses smaller parts, as S3 does
            data = random.Random(4).randbytes(2 * least + 1)
            p.server.endpoint, p.server.url, kept = endpoint, f"s3://{BUCKET}", p.server.endpoint
            p.upload("w +.safetensors", data, put_max=least, part=least)
            p.server.endpoint = kept
            made = s3.get_object(Bucket=BUCKET, Key="w +.safetensors")
            assert made["Body"].read() == data == file.read_bytes() and made["ETag"].endswith('-3"'), made["ETag"]
            assert "Uploads" not in s3.list_multipart_uploads(Bucket=BUCKET)
        finally:
            server.stop()
    print("PROMISE moto's S3 gives and takes the same")


TESTS = {name[5:]: test for name, test in globals().items() if name.startswith("test_")}


def run_test(name):
    """In a process of its own: what it printed, and whether it failed."""
    said, failed, begin = io.StringIO(), False, time.monotonic()
    with contextlib.redirect_stdout(said):
        try:
            TESTS[name]()
        except Exception:
            failed = True
            traceback.print_exc(file=said)
    return f"{said.getvalue()}{name}: {'FAILED after ' if failed else ''}{time.monotonic() - begin:.1f} s", failed


def main():
    names, failures = sys.argv[2:] or list(TESTS), 0
    with multiprocessing.get_context("fork").Pool(AT_ONCE, maxtasksperchild=1) as pool:
        for said, failed in pool.imap_unordered(run_test, names):
            print(said, flush=True)
            failures += failed
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
