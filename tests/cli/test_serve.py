"""lockstep serve: the real program with a browser, and its end beside a client that has sent half a
request.
"""

import asyncio
import contextlib
import re
import shutil
import signal
import socket
import sys

import pytest
from benchmarks import serve as load
from benchmarks.browser import chromium, executable
from tests.conftest import NATIVE, start
from tests.helpers import refused, succeeded

from lockstep.classify.serve import network_address
from lockstep.errors import ENVIRONMENT, USAGE

PICTURES = load.digits()
CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


def address_of(process):
    """Return the port of a server once it is ready."""
    first, second = process.stdout.readline(), process.stdout.readline()
    assert re.fullmatch(r"serving .*a/model.safetensors, 10 classes\n", first), (
        process.stderr.read()
    )
    return int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)  \(Ctrl-C ends it\)\n", second)[1])


@pytest.fixture(scope="module")
def server(trained_once, tmp_path_factory):
    """The port of a server that all tests share."""
    process = start(
        "serve", trained_once(*NATIVE)[0], "--port", 0, cwd=tmp_path_factory.mktemp("serve")
    )
    port = address_of(process)
    yield port
    with half_sent(port, b"POST"):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "ended\n", "")


@contextlib.contextmanager
def half_sent(port, text):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(text)
        yield connection


def test_the_real_program_answers(server):
    (reply,) = asyncio.run(load.burst(server, PICTURES[:1]))
    assert (reply.status, reply.body["predictions"][0]["error"]) == (200, None)


def test_a_mistake_is_one_error(here, trained_once, monkeypatch):
    run, _ = trained_once(*NATIVE)
    with socket.create_server(("127.0.0.1", 0)) as other:
        busy = other.getsockname()[1]
        refused(
            here("serve", run, "--port", busy),
            ENVIRONMENT,
            f"--port {busy}: Address already in use: choose",
        )
    refused(
        here("serve", run, "--port", 0, "--host", "no.such.host.invalid"),
        ENVIRONMENT,
        "at --host no.such",
    )
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    refused(
        here("serve", run),
        ENVIRONMENT,
        "serve needs uvicorn: pip install 'lockstep-images[serve]'",
    )


@pytest.mark.parametrize("origin", ["*", "null", "app.example", "https://app.example/", "HTTP://A"])
def test_an_origin_that_no_browser_sends_is_refused(here, origin):
    refused(
        here("serve", "run", "--allow-origin", origin),
        USAGE,
        "is no origin: give the scheme and the host",
    )


def test_an_unfinished_run_is_served_by_its_newest_checkpoint(
    here, trained_once, tmp_path, monkeypatch
):
    run = shutil.copytree(trained_once(*NATIVE)[0], tmp_path / "copy")
    (run / "result.json").unlink()
    (run / "model.safetensors").unlink()
    monkeypatch.setattr(
        "lockstep.classify.serve.serve_until_signal", lambda server, listening: listening.close()
    )
    done = succeeded(here("serve", run, "--host", "0.0.0.0", "--port", 0))
    assert done.stdout.startswith(
        f"serving {run}/checkpoints/step-000000030.safetensors, 10 classes\nhttp://"
    )
    shown = re.findall(r"^http://(\S+):(\d+)  ", done.stdout, re.M)
    assert [name for name, _ in shown] == [network_address(), "127.0.0.1"]
    assert len({port for _, port in shown}) == 1
    assert done.stderr == "--host 0.0.0.0: everyone on the network can use this server\n"


@pytest.fixture(scope="module")
def browser():
    if executable() is None:
        pytest.skip("no Chromium is installed")
    with chromium(*CAMERA) as started:
        yield started


@pytest.fixture
def page(browser, server):
    """The page in a narrow window. Requests elsewhere and errors of its script fail the test."""
    context = browser.new_context(viewport={"width": 390, "height": 800}, permissions=["camera"])
    page = context.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console",
        lambda message: None if "status of 422" in message.text else problems.append(message.text),
    )
    own = (f"http://127.0.0.1:{server}/", "blob:", "data:")
    page.on(
        "request",
        lambda request: None if request.url.startswith(own) else problems.append(request.url),
    )
    page.goto(f"http://127.0.0.1:{server}/")
    yield page
    assert problems == []
    context.close()


def classified(page, count):
    """Wait until `count` pictures have results. Return the text of each card, the newest first."""
    from playwright.sync_api import expect

    expect(page.locator(".card:not([aria-busy])")).to_have_count(count)
    return page.locator(".card").all_inner_texts()


SENT = """(node, [bytes, way]) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], "a.png", { type: "image/png" }));
  if (way == "paste")
    document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
  else for (const kind of ["dragover", "drop"])
    document.querySelector("#drop").dispatchEvent(
      new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
}"""


@pytest.mark.parametrize("way", ["drop", "paste"])
def test_a_dropped_or_pasted_picture_shows_classes_with_bars(page, way):
    page.locator("body").evaluate(SENT, [[*PICTURES[0]], way])
    (text,) = classified(page, 1)
    assert "a.png" in text
    assert "what the network sees" in text
    bars = page.locator(".bars li")
    assert bars.count() == 5
    shares = [float(re.search(r"([\d.]+)%", each)[1]) for each in bars.all_inner_texts()]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) < 101
    widths = [
        float(re.search(r"[\d.]+", each.get_attribute("style"))[0])
        for each in page.locator(".fill").all()
    ]
    assert widths == pytest.approx(shares, abs=0.06)
    assert page.locator(".input img").evaluate(
        "image => [image.naturalWidth, image.naturalHeight]"
    ) == [8, 8]
    assert page.locator(".mark").is_hidden()
    assert (
        page.locator("#status")
        .inner_text()
        .startswith(f"a.png: {page.locator('h2').inner_text()}, ")
    )


def test_the_keyboard_chooses_files_and_a_bad_one_is_a_sentence(page, tmp_path):
    picture, notes = tmp_path / f"{'a_long_name' * 12}.png", tmp_path / "notes.png"
    picture.write_bytes(PICTURES[0])
    notes.write_text("no image")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "files"
    assert (
        page.locator("#files").evaluate("input => input.labels[0].textContent") == "Choose pictures"
    )
    page.set_input_files("#files", [picture, notes])
    first, second = classified(page, 2)
    assert picture.name in first
    assert page.locator("html").evaluate("root => root.scrollWidth") == 390  # as wide as the window
    assert "not a JPEG, PNG, WebP, BMP, GIF, TIFF, HEIC, AVIF or PPM image" in second
    page.get_by_role("button", name="Clear").click()
    assert page.locator(".card").count() == 0


def test_the_camera_takes_a_picture_and_is_switched_off(page):
    page.get_by_role("button", name="Use the camera").click()
    page.locator("#video").evaluate(
        "video => video.videoWidth || new Promise(go => { video.onloadeddata = go; })"
    )
    page.get_by_role("button", name="Take the picture").click()
    assert "camera.png" in classified(page, 1)[0]
    assert page.locator("#video").evaluate("video => video.srcObject.active") is False
    assert page.locator("dialog").is_hidden()
