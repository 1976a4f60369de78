"""Index one document: unpack it, cut it into chunks, count its words, write index/DOCUMENT.json.

An ordinary program that knows little of jobvisor: the document is its argument, the job's payload also comes as JSON on
stdin, JOBVISOR_ATTEMPT is the number of the attempt, and the exit code says how it went (0 good, 75 try again, 65 do not
bother). What it prints on stdout is the job's result. Python 3.8 or newer, nothing but the standard library.

By hand:  JOBVISOR_ATTEMPT=1 python3 ingest.py documents/harbour.txt </dev/null
"""

import collections
import json
import os
import re
import sys

TRY_AGAIN = 75
DO_NOT_BOTHER = 65
CHUNK_WORDS = 200
WORD = re.compile(r"[^\W\d_]{2,}")


def main():
    path = sys.argv[1]
    payload = json.loads(sys.stdin.read() or "{}")
    attempt = int(os.environ.get("JOBVISOR_ATTEMPT", "1"))
    if attempt < payload.get("complete_at_attempt", 1):
        fail(TRY_AGAIN, "%s is still being uploaded" % path)
    print("attempt %d reads %s" % (attempt, path), file=sys.stderr)
    words = WORD.findall(text_of(path).lower())
    if not words:
        fail(DO_NOT_BOTHER, "%s holds no words" % path)
    chunks = [words[n : n + CHUNK_WORDS] for n in range(0, len(words), CHUNK_WORDS)]
    places = collections.defaultdict(list)
    for number, chunk in enumerate(chunks):
        for word in sorted(set(chunk)):
            places[word].append(number)
    counts = collections.Counter(words).most_common(5)
    summary = {"document": path, "words": len(words), "chunks": len(chunks), "distinct": len(places), "top": counts}
    print(json.dumps(dict(summary, index=write_index(path, dict(summary, places=places)))))


def text_of(path):
    """The document's text, whatever it is packed in."""
    with open(path, "rb") as file:
        data = file.read()
    while data[:2] == b"\x1f\x8b":
        import gzip

        data = gzip.decompress(data)
        path = path[:-3] if path.endswith(".gz") else path
    kind = os.path.splitext(path)[1]
    if kind == ".zip":
        return zip_text(data)
    if kind == ".img":
        return native_parser(data)
    if kind == ".url":
        return fetch(data.decode())
    text = data.decode("utf-8")
    if kind == ".html":
        return html_text(text)
    if kind == ".csv":
        import csv

        return "\n".join(" ".join(row) for row in csv.reader(text.splitlines()))
    return text


def zip_text(data):
    import io
    import zipfile

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return "\n".join(archive.read(name).decode("utf-8") for name in sorted(archive.namelist()))
    except zipfile.BadZipFile as error:
        fail(DO_NOT_BOTHER, "this archive cannot be read, now or later: %s" % error)


def html_text(text):
    from html.parser import HTMLParser

    parts = []
    parser = HTMLParser()
    parser.handle_data = parts.append
    parser.feed(text)
    return " ".join(parts)


def native_parser(data):
    """Stands for a C library that trusts an offset of a damaged file."""
    import ctypes

    offset = int.from_bytes(data[8:16], "little")
    return ctypes.string_at(offset).decode()


def fetch(url):
    """Stands for a server that accepts and never answers."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_connection(silent.getsockname()) as client:
        print("waiting for %s" % url.strip(), file=sys.stderr, flush=True)
        return client.recv(65536).decode()


def write_index(path, index):
    """Whole or not at all, and the same for every attempt."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "index")
    os.makedirs(folder, exist_ok=True)
    target = os.path.join(folder, os.path.basename(path) + ".json")
    draft = "%s.%d" % (target, os.getpid())
    with open(draft, "w", encoding="utf-8") as file:
        json.dump(index, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, target)
    return os.path.relpath(target)


def fail(code, message):
    print(message, file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
