"""The application in a server of this process: answers, refusals and limits, which the tests make
small.
"""

import base64
import contextlib
import functools
import http.client
import io
import json
import socket
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from email.message import Message
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from benchmarks import serve as load
from PIL import Image
from tests.conftest import NATIVE
from tests.documents import ROOT
from tests.helpers import lockstep_error

import lockstep
from lockstep.classify import serve as application
from lockstep.classify.decoder import Decoder
from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.pictures.decode import Decoding, decode_image, stored_pixels

PICTURES = load.digits()[:40]
FORM = {"Content-Type": "multipart/form-data; boundary=x"}


class Here:
    """Decodes in this process what its allowance of pixels permits. `wait` is called before each
    picture.
    """

    def __init__(self, wait=lambda picture, alone: None, **facts):
        self.alone = facts["most_px"] == application.PIXEL_LIMIT
        self.most, self.wait, self.limit = facts["most_px"], wait, facts["limit_px"]
        self.decoding = Decoding(*(facts[name] for name in Decoding._fields))

    def pixels(self, picture):
        self.wait(picture, self.alone)
        small = stored_pixels(picture, self.limit) <= self.most
        return decode_image(picture, self.decoding) if small else None

    def end(self):
        pass


@pytest.fixture(scope="module", autouse=True)
def decoded_here():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(application, "Decoder", Here)
        yield


@pytest.fixture(scope="module")
def classifier(trained_once):
    return lockstep.load(trained_once(*NATIVE)[0])


def like(classifier, **changed):
    """Return an object like `classifier`, with some other attributes."""
    names = (
        "classes",
        "recipe",
        "image_shape",
        "origin",
        "decoding",
        "predict",
        "predict_pixels",
        "confidence",
        "thresholds",
    )
    return SimpleNamespace(**{name: getattr(classifier, name) for name in names} | changed)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 with IPv4 here")
def test_every_address_is_that_of_ipv4_too():
    with application.listen("::", 0) as listening:
        socket.create_connection(("127.0.0.1", listening.getsockname()[1])).close()


def test_a_name_that_no_host_can_have_is_refused():
    with lockstep_error("cannot listen at --host a..b --port 0: no such name"):
        application.listen("a..b", 0)


@contextlib.contextmanager
def serving(classifier, name="digits", seen=None, allow_origin=None):
    """Serve in a thread. Yield the port. The list `seen` receives the server."""
    listening = application.listen("127.0.0.1", 0)
    running = application.server_of(
        application.application(classifier, name, "Photos.Example", allow_origin)
    )
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    if seen is not None:
        seen.append(running)
    try:
        yield listening.getsockname()[1]
    finally:
        running.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def port(classifier):
    """The port of a server with the real limits."""
    with serving(classifier) as port:
        yield port


class Answer(NamedTuple):
    """The answer to a request; its content is JSON, or a text."""

    status: int
    headers: Message
    content: Any


def ask(port, path="/predict", body=None, method="POST", address="127.0.0.1", **headers):
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    with contextlib.closing(http.client.HTTPConnection(address, port, timeout=30)) as connection:
        connection.request(method, path, body, {"Content-Type": "image/png", **given})
        answer = connection.getresponse()
        text = answer.read().decode()
    if "json" in answer.headers["Content-Type"]:
        text = json.loads(text)
    return Answer(answer.status, answer.headers, text)


def accepted(port, **headers):
    """Return whether a small picture is classified."""
    return ask(port, body=PICTURES[0], **headers).status == 200


def decode_after(monkeypatch, wait):
    """Let each picture be decoded in this process, after `wait(picture, alone)`."""
    monkeypatch.setattr(application, "Decoder", functools.partial(Here, wait))


def refused(port, status, sentence, path="/predict", body=None, **options):
    got, headers, answer = ask(port, path, body, **options)
    assert (got, sentence in answer["error"]) == (status, True), answer
    return headers


def form(*files, field="image"):
    """Return the body of a form with files, given as (name, bytes)."""
    parts = [
        f'--x\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'.encode()
        + data
        + b"\r\n"
        for name, data in files
    ]
    return b"".join(parts) + b"--x--\r\n"


HALF_HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
HALF_BODY = HALF_HEAD + b"Content-Length: 1000\r\n\r\nabc"


def half_sent(port, text=HALF_BODY):
    """Return a connection that has sent a part of a request: its head and a part of its body."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(text)
    return connection


def answer_of(connection):
    """Return all that arrives until the connection ends, also by force."""
    with connection, contextlib.suppress(ConnectionResetError):
        return b"".join(iter(lambda: connection.recv(4096), b""))
    return b""


def test_an_answer_is_predicts_record_of_five_classes_and_unlike(classifier):
    expected = replace(classifier.predict(PICTURES[0], top=5), source="picture", mark="unfamiliar")
    marked = like(
        classifier,
        predict_pixels=lambda *words: replace(classifier.predict_pixels(*words), mark="unfamiliar"),
    )
    with serving(marked) as port:
        answer = ask(port, body=PICTURES[0])
    assert answer.status == 200
    assert answer.content == {"predictions": [expected.record()]}
    assert len(expected.top) == 5


def test_the_input_is_the_picture_as_the_network_sees_it(classifier, port):
    photo = io.BytesIO()
    Image.fromarray(
        np.arange(30 * 20 * 3, dtype=np.uint16).astype(np.uint8).reshape(30, 20, 3)
    ).save(photo, "PNG")
    # what the network takes of an image of 8 x 8 pixels
    centre = SimpleNamespace(shape=lambda *shape: (1, 4, 6))
    cut = classifier.recipe.model_copy(update={"augmentation": centre})
    with serving(like(classifier, recipe=cut)) as other:
        for asked, part in ((port, np.s_[:, :]), (other, np.s_[2:6, 1:7])):
            prediction = ask(asked, "/predict?input=png", photo.getvalue()).content["predictions"][
                0
            ]
            start, _, text = prediction["input"].partition(",")
            assert start == "data:image/png;base64"
            with contextlib.closing(Image.open(io.BytesIO(base64.b64decode(text)))) as seen:
                assert np.array_equal(
                    np.array(seen), classifier.pixels(photo.getvalue())[..., 0][part]
                )


def test_light_on_what_speaks_for_a_class_is_made_on_request(classifier, port):
    asked = "/predict?evidence=png", PICTURES[0]
    # This network is no linear head.
    assert ask(port, *asked).content["predictions"][0]["evidence"] is None

    def explained(pixels, top, name, evidence):
        return replace(
            classifier.predict_pixels(pixels, top, name), evidence=np.eye(2) if evidence else None
        )

    with serving(like(classifier, predict_pixels=explained)) as other:
        assert (
            ask(other, *asked)
            .content["predictions"][0]["evidence"]
            .startswith("data:image/png;base64,")
        )
        assert "evidence" not in ask(other, "/predict", PICTURES[0]).content["predictions"][0]


def test_an_answer_has_the_same_bits_beside_39_others(classifier, port):
    files = [(f"{number}.png", picture) for number, picture in enumerate(PICTURES)]
    files[3] = ("b.txt", b"no image")  # which harms no other
    with ThreadPoolExecutor(5) as clients:
        parts = [files[16:32], files[:16], files[32:], files[:1], [files[5], files[0]]]
        answers = list(
            clients.map(
                lambda part: ask(port, body=form(*part), **FORM).content["predictions"], parts
            )
        )
    expected = {
        name: {**classifier.predict([picture], 5)[0].record(), "source": name}
        for name, picture in files
    }
    assert [answer for part in answers for answer in part] == [
        expected[name] for part in parts for name, _ in part
    ]


def large_form():
    """Return the body of a form with eight files of a picture that is decoded alone, and this
    picture.
    """
    file = io.BytesIO()
    Image.new("1", (2000, 1001)).save(file, "PNG")
    return form(*[("a.png", file.getvalue())] * 8), file.getvalue()


def test_large_pictures_are_decoded_in_turn_and_small_ones_go_on(classifier, monkeypatch):
    """A file of 200 kB may need a gigabyte. Sixteen in two requests take the memory of one."""
    begun, go_on, decoding = threading.Event(), threading.Event(), []
    body, _ = large_form()

    def wait(picture, alone):
        if alone:
            decoding.append(1)
            begun.set()
            go_on.wait(60)
            assert len(decoding) == 1
            decoding.pop()

    decode_after(monkeypatch, wait)
    with serving(classifier) as port, ThreadPoolExecutor(2) as clients:
        waiting = [clients.submit(ask, port, body=body, **FORM) for _ in range(2)]
        assert begun.wait(60)
        assert accepted(port)
        assert not any(request.done() for request in waiting)
        go_on.set()
        answers = [request.result().content["predictions"] for request in waiting]
    assert [answer["error"] for part in answers for answer in part] == [None] * 16


def test_a_request_has_one_picture_decoded_at_a_time(classifier, monkeypatch):
    """So the pictures of one request do not occupy all decoders."""
    decoding, most, lock = [], [], threading.Lock()

    def wait(picture, alone):
        with lock:
            decoding.append(1)
            most.append(len(decoding))
        threading.Event().wait(0.005)
        with lock:
            decoding.pop()

    decode_after(monkeypatch, wait)
    with serving(classifier) as port:
        files = [(f"{number}.png", picture) for number, picture in enumerate(PICTURES[:16])]
        assert ask(port, body=form(*files), **FORM).status == 200
    assert most == [1] * 16


def test_a_picture_that_takes_more_than_any_may_is_an_error(classifier, monkeypatch):
    monkeypatch.setitem(application._LARGE, "most_px", 1_000_000)
    with serving(classifier) as port:
        refused(
            port, 422, "it takes more than 1 GB or 20 s to decode: send it as", body=large_form()[1]
        )
    assert application._LARGE.keys() == {"most_px", "memory", "seconds"}
    # as the sentence says
    assert (application._LARGE["memory"], application._LARGE["seconds"]) == (1e9, 20)


def test_a_request_that_is_cancelled_leaves_nothing_to_decode(classifier, monkeypatch):
    decoded, go_on = [], threading.Event()
    body, large = large_form()

    def wait(picture, alone):
        if alone:
            decoded.append(picture)
            go_on.wait(60)

    decode_after(monkeypatch, wait)
    with serving(classifier) as port:
        with monkeypatch.context() as patch:
            patch.setattr(application, "REQUEST_LIMIT_S", 0.5)
            refused(port, 504, "no answer within 0.5 s", body=body, **FORM)
        go_on.set()
        assert ask(port, body=large).status == 200  # after all that wait for the same thread
    assert len(decoded) <= 2  # not nine


BOMB = b"\x89PNG\r\n\x1a\n" + b"".join(
    len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)
    for kind, data in (
        (b"IHDR", (7_500).to_bytes(4) * 2 + bytes([8, 0, 0, 0, 0])),
        (b"IDAT", zlib.compress(bytes(1 << 20))),
        (b"IEND", b""),
    )
)


@pytest.mark.parametrize(
    ("status", "sentence", "body", "headers"),
    [
        (422, "picture: empty", b"", {}),
        (422, "picture: truncated", PICTURES[0][:60], {}),
        (422, "56 megapixels, more than 55", BOMB, {}),
        (422, "no file in the field image", form(("a.png", b"x"), field="other"), FORM),
        (422, "a.png: not a JPEG", form(("a.png", b"x")), FORM),
        (400, "Too many files", form(*[("a.png", b"x")] * 17), FORM),
        (400, "Missing boundary", b"text", {"Content-Type": "multipart/form-data"}),
        (
            400,
            "the form cannot be read",
            form(("ä.png", b"x")),
            {"Content-Type": FORM["Content-Type"] + "; charset=undefined"},
        ),
        (
            415,
            "Content-Type is text/plain: send a picture",
            b"text",
            {"Content-Type": "text/plain"},
        ),
        (413, "at most 32.0 MB", bytes(33_000_000), {}),
        (413, "at most 32.0 MB", (bytes(1 << 20) for _ in range(32)), {}),
    ],
)
def test_a_bad_upload_is_a_status_and_a_sentence(port, status, sentence, body, headers, capfd):
    refused(port, status, sentence, body=body, **headers)
    assert capfd.readouterr() == ("", "")


def test_get_has_the_page_and_other_paths_name_the_right_ones(classifier, port):
    facts = {"name": "digits", "weights": "model.safetensors", "classes": [*classifier.classes]}
    assert ask(port, "/health", method="GET").content == {
        "status": "ok",
        **facts,
        "image_shape": [8, 8, 1],
    }
    refused(port, 404, "POST /predict", "/other")
    refused(port, 405, "POST /predict", method="GET")


def test_only_own_names_and_origins_are_served(port):
    for host in ("evil.example", "evil.example:8000", "", "127.0.0.1.evil.example", "[::1"):
        refused(port, 403, "only this server's page", "/health", method="GET", Host=host)
    for origin in ("http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1"):
        refused(port, 403, "only this server's page", body=PICTURES[0], Origin=origin)
    for host in (
        f"localhost:{port}",
        "192.168.1.7",
        "[::1]:8000",
        "LOCALHOST",
        "photos.example:8000",
    ):
        assert accepted(port, Host=host, Origin=f"http://{host}")


def test_the_page_loads_nothing_foreign_and_a_name_on_it_is_text(classifier, port):
    status, headers, text = ask(port, "/", method="GET")
    policy = headers["Content-Security-Policy"]
    assert status == 200
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    assert text.count(f'nonce="{nonce}"') == text.count("<script") + text.count("<style") == 2
    assert nonce not in ask(port, "/", method="GET").content
    assert "http://" not in text
    assert "https://" not in text
    with serving(classifier, "<script>\x1b[2J") as port:
        text = ask(port, "/", method="GET").content
    assert "<h1>&lt;script&gt;\\x1b[2J</h1>" in text


def test_the_page_says_how_often_confident_answers_are_right(classifier, port, monkeypatch):
    assert "confident answer" not in ask(port, "/", method="GET").content
    monkeypatch.setattr(classifier.confidence, "confident_from", [0.5] * 10)
    for share, times in ((0.95, "95"), (0.999, "99.9")):
        monkeypatch.setattr(classifier.confidence, "share", share)
        text = " ".join(ask(port, "/", method="GET").content.split())
        assert f"right at least {times} times in 100, for pictures like the training ones." in text


def test_a_half_sent_body_ends_in_time_and_holds_no_memory(classifier, monkeypatch):
    monkeypatch.setattr(application, "REQUEST_LIMIT_S", 0.5)
    monkeypatch.setattr(application, "MEMORY_LIMIT", 1000)
    with serving(classifier) as port:
        slow = [half_sent(port) for _ in range(5)]
        assert accepted(port)
        for connection in slow:
            answer = answer_of(connection)
            assert b" 504 " in answer
            assert b"no answer within 0.5 s" in answer
        half_sent(port).close()  # a client that goes away
        assert accepted(port)
        headers = refused(
            port, 503, "too much memory, and this one is the largest", body=bytes(2000)
        )
        assert int(headers["Retry-After"]) > 0
        # together more than the limit
        assert all(accepted(port) for _ in range(20))


def test_half_sent_bodies_do_not_stop_a_smaller_picture(classifier, monkeypatch):
    monkeypatch.setattr(application, "MEMORY_LIMIT", 1000)
    assert len(PICTURES[0]) < 300
    with serving(classifier) as port:
        slow = [half_sent(port, HALF_BODY + bytes(300)) for _ in range(3)]
        assert ask(port, "/health", method="GET").status == 200  # after those have arrived
        assert all(accepted(port) for _ in range(5))
        for connection in slow:
            connection.shutdown(socket.SHUT_WR)
        answers = [answer_of(connection) for connection in slow]
    assert sum(b"too much memory, and this one is the largest" in answer for answer in answers) in (
        1,
        2,
    )


GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "text",
    [
        GET + HALF_HEAD,
        *(pytest.param(text, marks=pytest.mark.slow) for text in (b"", HALF_HEAD, HALF_BODY)),
    ],
)
def test_too_many_waiting_connections_do_not_stop_a_client(classifier, monkeypatch, text):
    monkeypatch.setattr(application, "CONNECTION_LIMIT", 5)
    with serving(classifier) as port:
        held = []
        for _ in range(20):
            held.append(half_sent(port, text))
            if text.startswith(b"GET"):
                held[-1].recv(4096)  # else they are requests, of which there would be too many
        assert all(accepted(port) for _ in range(5))
        for connection in held[:10]:
            assert b" 50" not in answer_of(connection)  # ended long before its time
        for connection in held[10:]:
            connection.close()


def test_beyond_the_limit_of_requests_the_answer_is_503(classifier, monkeypatch):
    monkeypatch.setattr(application, "CONNECTION_LIMIT", 3)
    begun, go_on = threading.Semaphore(0), threading.Event()

    def wait(picture, alone):
        begun.release()
        go_on.wait(60)

    decode_after(monkeypatch, wait)
    with serving(classifier) as port, ThreadPoolExecutor(2) as clients:
        answered = [clients.submit(ask, port, body=PICTURES[0]) for _ in range(2)]
        assert begun.acquire(timeout=60)
        assert begun.acquire(timeout=60)
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        ) as connection:
            connection.request("GET", "/health")
            assert connection.getresponse().status == 503
        go_on.set()
        assert [request.result()[0] for request in answered] == [200, 200]
        assert accepted(port)


def test_a_missing_head_and_an_unread_answer_end_the_connection(classifier, monkeypatch):
    monkeypatch.setattr(application, "HEAD_LIMIT_S", 0.3)
    monkeypatch.setattr(application, "REQUEST_LIMIT_S", 0.3)
    page, seen = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", []
    with serving(classifier, seen=seen) as port:
        held = [half_sent(port, text) for text in (b"", HALF_HEAD, page + HALF_HEAD)]
        held += [half_sent(port, page * 2000)]  # more than fits into the buffers on the way
        held += [
            half_sent(
                port, HALF_HEAD.replace(b"predict", b"none") + b"Content-Length: 99999\r\n\r\n"
            )
        ]
        assert [answer_of(connection)[:12] for connection in held[:2]] == [b"", b""]
        assert answer_of(held[2]).startswith(b"HTTP/1.1 200")
        (running,) = seen
        while running.server_state.connections:
            with contextlib.suppress(OSError):
                held[4].sendall(b"x")  # A client that sends on does not stay.
            threading.Event().wait(0.01)
        for connection in held[3:]:
            connection.close()


def test_the_real_decoders_answer_and_end_with_the_server(classifier, monkeypatch):
    decoders = []

    def real(**facts):
        decoders.append(Decoder(**facts))
        return decoders[-1]

    monkeypatch.setattr(application, "Decoder", real)
    with serving(classifier) as port:
        assert (
            ask(port, body=PICTURES[0]).content["predictions"][0]["top"]
            == (classifier.predict(PICTURES[0], 5).record()["top"])
        )
        programs = [decoder._program for decoder in decoders if decoder._link]
        assert [program.poll() for program in programs] == [None]
    assert programs[0].poll() is not None


def test_a_pictures_error_is_an_answer_and_the_next_one_succeeds(classifier, caplog):
    left = [LockstepError("too little memory", ENVIRONMENT), ZeroDivisionError("a bug")]

    def predict(*args):
        if left:
            raise left.pop(0)
        return classifier.predict_pixels(*args)

    with serving(like(classifier, predict_pixels=predict)) as port:
        refused(port, 503, "too little memory", body=PICTURES[0])
        assert caplog.text == ""
        refused(port, 500, "its terminal shows it", body=PICTURES[0])
        assert accepted(port)
    assert "ZeroDivisionError: a bug" in caplog.text


def test_the_server_ends_though_a_client_has_sent_half_a_body(classifier, monkeypatch):
    monkeypatch.setattr(application, "END_LIMIT_S", 0.1)
    with serving(classifier) as port:
        waiting = half_sent(port)
        assert accepted(port)
    with waiting:
        assert b" 504 " not in waiting.recv(4096)  # the answer after the time limit of a request


def test_a_classifier_without_pictures_is_an_error_at_the_start(classifier):
    other = like(
        classifier,
        predict=lambda *args, **options: iter([lockstep.Prediction(0, error="squares only")]),
    )
    with lockstep_error("cannot classify pictures: squares only"):
        application.application(other, "x", "127.0.0.1")


def test_the_page_states_the_limits():
    page = " ".join((ROOT / "docs/serve.md").read_text().split())
    small, large = application._SMALL, application._LARGE
    limits = (
        f"| a request | {application.BODY_LIMIT // 10**6} MB | 413 |",
        f"to its answer | {application.REQUEST_LIMIT_S:g} s | 504 |",
        f"reading an answer | {application.HEAD_LIMIT_S:g} s |",
        f"| connections | {application.CONNECTION_LIMIT} |",
        f"{application.CONNECTION_LIMIT}, or {application.MEMORY_LIMIT // 10**6} MB | 503",
        f"up to {application.FILE_LIMIT} files",
        f"{small['most_px'] // 10**6} million pixels, {small['memory'] // 10**6} MB of memory and "
        f"{small['seconds']} s",
        f"{large['most_px'] // 10**6} million pixels, {large['memory'] // 10**9} GB of memory and "
        f"{large['seconds']:g} s",
    )
    assert [limit for limit in limits if limit not in page] == []


JSON = {"Content-Type": "application/json"}
TEXT = base64.b64encode(PICTURES[0]).decode()


@pytest.mark.parametrize("field", ["image", "file"])
@pytest.mark.parametrize(
    "text", [TEXT, f"data:image/png;base64,{TEXT}", TEXT[:60] + "\n" + TEXT[60:]]
)
def test_json_and_both_fields_of_a_form_give_the_same_answer(port, field, text):
    expected = ask(port, body=PICTURES[0]).content["predictions"][0]
    form = (
        f'--x\r\nContent-Disposition: form-data; name="{field}"; filename="picture"\r\n\r\n'
    ).encode()
    sent = [
        (json.dumps({field: text}), JSON),
        (form + PICTURES[0] + b"\r\n--x--\r\n", FORM),
    ]
    for body, headers in sent:
        answer = ask(port, body=body, **headers)
        assert (answer.status, answer.content["predictions"]) == (200, [expected])


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "[]",
        "[" * 100_000,
        '"image"',
        "null",
        "{}",
        '{"image": 1}',
        '{"image": "*"}',
        '{"image": "\u00e9"}',
        '{"image": "AA==", "file": "AA=="}',
        b"\xff",
    ],
)
def test_json_without_a_picture_is_one_sentence(port, body):
    refused(port, 400, "the JSON has no picture in base64", body=body, **JSON)


@pytest.mark.parametrize(("kind", "status"), [("image/png", 413), ("text/plain", 415)])
def test_a_client_that_sends_all_first_reads_the_refusal(port, kind, status):
    size = 40_000_000
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode())
        connection.sendall(bytes(size))
        assert connection.recv(100).startswith(f"HTTP/1.1 {status}".encode())


def test_a_client_that_expects_100_sends_no_large_body(port):
    head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(
            f"{head}Expect: 100-continue\r\nContent-Length: 40000000\r\n\r\n".encode()
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_only_an_allowed_site_may_use_the_server(classifier, port):
    site = "https://app.example"
    asked = {
        "Access_Control_Request_Method": "POST",
        "Access_Control_Request_Headers": "content-type",
    }
    assert ask(port, method="OPTIONS", Origin=site, **asked).status in (403, 405)
    with serving(classifier, allow_origin=site) as own:
        preflight = ask(own, method="OPTIONS", Origin=site, **asked)
        answer = ask(own, body=PICTURES[0], Origin=site)
        for each in (preflight, answer):
            assert each.status == 200
            assert each.headers["Access-Control-Allow-Origin"] == site
        for other in ("https://other.example", "null", f"{site}.other.example"):
            assert ask(own, method="OPTIONS", Origin=other, **asked).status == 400
            reply = ask(own, body=PICTURES[0], Origin=other)
            assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (403, None)
        assert ask(own, body=PICTURES[0], Origin=site, Host="rebound.example").status == 403
