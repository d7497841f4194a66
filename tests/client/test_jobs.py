# SPDX-License-Identifier: Apache-2.0
import json

import pytest

pytest.importorskip("httpx2")

from sfumato.client import Client, JobState, MapJob
from sfumato.client.jobs import read_events
from sfumato.errors import ServerError

ID = "0123456789abcdef" * 2
FACTS = {
    "id": ID,
    "number": 4,
    "place": "ab" * 16,
    "state": "running",
    "stage": "",
    "done": 0,
    "total": 0,
    "reason": "",
}


@pytest.fixture
def job(scripted, tmp_path, monkeypatch):
    monkeypatch.setattr("sfumato.client.jobs.time.sleep", lambda seconds: None)
    with Client(scripted.url, scripted.key, names=tmp_path / "device.names", sleep=lambda seconds: None) as client:
        yield MapJob(client.transport, client.names, JobState(ID, 4, "ab" * 16, "queued"))


def stream(*events, breaks=False):
    """Answer with events, and then end the stream, or break it in the middle of an event."""

    def answer(handler):
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.send_header("Connection", "close")
        handler.end_headers()
        text = "".join(f"id: {n}\nevent: {kind}\ndata: {json.dumps(facts)}\n\n" for n, kind, facts in events)
        data = (": beat\n\n" + text + ("id: 99\nevent: done\n" if breaks else "")).encode()
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if not breaks:
            handler.wfile.write(b"0\r\n\r\n")

    return answer


def progress(number, done):
    return number, "progress", {"stage": "match", "done": done, "total": 9}


def finished(state="done", **more):
    return 200, {**FACTS, "state": state, "events": 9, **more}, {}


def test_a_state_says_nothing_twice():
    assert str(JobState(ID, 4, "ab" * 16, "cancelled", reason="cancelled")) == "job 4, map: cancelled"
    waiting = JobState(ID, 4, "ab" * 16, "queued", reason="waits", kind="evidence")
    assert str(waiting) == "job 4, evidence: queued, waits"


def test_a_job_is_followed_to_its_end(scripted, job):
    figures = {"registered": 3, "unregistered": ["cd" * 16]}
    scripted.answers = [stream(progress(1, 3), (2, "done", {})), finished(map=7, figures=figures)]
    states = []
    end = job.wait(progress=states.append)
    assert (end.state, end.map, end.figures["registered"]) == ("done", 7, 3)
    assert [str(state) for state in states[:1]] == ["job 4, map: match 3 of 9"]
    assert job.state == end


def test_a_stream_that_breaks_is_taken_up_where_it_was(scripted, job):
    scripted.answers = [
        stream(progress(1, 3), progress(2, 4), breaks=True),
        stream(progress(3, 5)),
        stream((4, "done", {})),
        finished(),
    ]
    states = []
    assert job.wait(states.append).has_ended
    assert [request["headers"].get("Last-Event-ID") for request in scripted.requests[:3]] == ["0", "2", "3"]
    assert [state.done for state in states if state.stage] == [3, 4, 5, 5]


def test_where_no_stream_comes_through_the_server_is_asked(scripted, job):
    no_stream = (200, b"<html>", {"Content-Type": "text/html"})
    running = 200, {**FACTS, "stage": "map", "done": 1, "total": 2, "events": 5}, {}
    scripted.answers = [no_stream, no_stream, no_stream, running, no_stream, no_stream, no_stream, finished()]
    assert job.wait().state == "done"
    polls = [request["path"] for request in scripted.requests if "wait=" in request["path"]]
    assert polls[0].endswith("?wait=20&after=0")
    assert len(scripted.requests) <= 10


@pytest.mark.parametrize(("state", "code"), [("failed", "job_failed"), ("cancelled", "job_cancelled")])
def test_a_job_that_fails_is_an_error(scripted, job, state, code):
    scripted.answers = [stream((1, state, {"reason": "x"})), finished(state, reason=f"because of {'ab' * 16}")]
    with pytest.raises(ServerError) as caught:
        job.wait()
    assert caught.value.code == code


def test_a_refusal_ends_the_waiting(scripted, job, refusal):
    scripted.answers = [refusal(404, "not_found")]
    with pytest.raises(ServerError, match="not_found"):
        job.wait()
    assert len(scripted.requests) == 1


def test_a_server_that_stays_away_is_given_up(scripted, job, monkeypatch):
    monkeypatch.setattr("sfumato.client.jobs.PATIENCE_SECONDS", 0.0)
    scripted.answers = [lambda handler: handler.connection.close()]
    with pytest.raises(ServerError) as caught:
        job.wait()
    assert caught.value.code == "unreachable"


def test_a_break_after_the_last_event_is_waited_out(scripted, job):
    scripted.answers = [stream((1, "done", {})), lambda handler: handler.connection.close(), finished(map=2)]
    assert job.wait().map == 2


def test_cancel_asks_once(scripted, job):
    scripted.answers = [(202, {**FACTS, "state": "cancelled"}, {})]
    assert job.cancel().state == "cancelled"
    assert scripted.requests[0]["path"] == f"/v1/jobs/{ID}:cancel"


@pytest.mark.parametrize(
    "facts", [[], {}, {**FACTS, "number": "x"}, {**FACTS, "figures": 3}, {**FACTS, "id": "../keys"}, "text"]
)
def test_strange_answers_are_refused(scripted, job, facts):
    scripted.answers = [(200, facts, {})]
    with pytest.raises(ServerError) as caught:
        job.refresh()
    assert caught.value.code == "strange_answer"


def test_events_that_cannot_be_read_are_refused():
    assert list(read_events(iter(["id: 1", "event: x", "data: {}", "", ": beat", "", "id: 2"]))) == [(1, "x", {})]
    for line in ("id: x", "data: {", "data: 3"):
        with pytest.raises(ServerError):
            list(read_events(iter(["event: x", line, ""])))


def test_a_job_that_has_ended_is_not_waited_for(scripted, job):
    job.state = JobState(ID, 4, "ab" * 16, "done")
    scripted.answers = [finished()]
    assert job.wait().state == "done"
    assert len(scripted.requests) == 1
